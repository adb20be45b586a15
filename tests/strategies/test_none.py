"""No communication: every rank is one process on its own part (see test_local_sgd.py); the model is rank 0's."""

from strategies.local_models.none import NoCommunication
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task


def test_the_model_is_rank_0s() -> None:
    def trained(rank: Rank) -> tuple[list[float], list[float]]:
        rank.epoch(1)
        return rank.x().tolist(), rank.strategy.model().tolist()

    ranks = on_ranks(Task(NoCommunication(), 3), trained)
    assert all(model == ranks[0][0] for _, model in ranks)
