"""Sparta: the same random elements on all ranks become their mean; the others stay as they are."""

import pytest
import torch

from strategies import DESLOC, Gossip, LocalSGD, NoCommunication, Sparta, Strategy
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task

N = 3


def standing(fraction: float, steps: int, seed: int) -> list[list[torch.Tensor]]:
    """Steps without gradients: of each rank x [n] after each, which begins at its rank everywhere."""

    def stand(rank: Rank) -> list[torch.Tensor]:
        rank.strategy.seed = seed
        rank.replica.x.fill_(float(rank.transport.rank))
        seen = list[torch.Tensor]()
        for _ in range(steps):
            rank.constant_step(0.0, 1)
            seen.append(rank.x())
        return seen

    return on_ranks(Task(Sparta(fraction=fraction), N, "plain"), stand)


def test_what_is_drawn_depends_on_the_seed_and_the_step() -> None:
    first, same, other = (standing(0.2, 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first[1], same[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(
    "strategy", [Sparta(), LocalSGD(), DESLOC(), Gossip(), NoCommunication()], ids=lambda strategy: strategy.name
)
def test_who_has_a_model_of_its_own_counts_the_samples_of_all(strategy: Strategy) -> None:
    def counted(rank: Rank) -> list[tuple[int, float]]:
        seen = list[tuple[int, float]]()
        for _ in range(3):
            rank.constant_step(0.0, 4)
            seen.append((rank.strategy.updater.samples, rank.strategy.updater.processed))
        return seen

    for seen in on_ranks(Task(strategy, N, "plain"), counted):
        assert seen == [(4 * N, 4 * N), (8 * N, 8 * N), (12 * N, 12 * N)], "the schedule follows them"
