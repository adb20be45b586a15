"""No communication: every rank is one process on its own part (see test_local_sgd.py); the model is rank 0's."""

from pathlib import Path

import pandas as pd

from strategies.local_models.none import NoCommunication
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task
from tests.strategies.runs import made


def test_the_model_is_rank_0s() -> None:
    def trained(rank: Rank) -> tuple[list[float], list[float]]:
        rank.epoch(1)
        return rank.x().tolist(), rank.strategy.model().tolist()

    ranks = on_ranks(Task(NoCommunication(), 3), trained)
    assert all(model == ranks[0][0] for _, model in ranks)


def test_the_record_says_that_the_models_differ(tmp_path: Path) -> None:
    entry = made(tmp_path, "run", NoCommunication(), real=True)
    assert entry["replicas_identical"] is False
    assert "the scores are of rank 0's parameters" in entry["remark"]
    assert pd.read_csv(tmp_path / "run.csv")["messages_sent"].sum() == 0
