"""Downpour: no movement is lost, however often it pushes and fetches."""

import pytest
import torch

from strategies.asynchronous_server.downpour import Downpour
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (3, 2), (7, 7), (100, 100), (1, 100), (100, 1)])
def test_all_movements_are_added_up_once(n_push: int, n_fetch: int) -> None:
    """Each worker's gradient is 1 + its number in 7 steps of learning rate 1: x on the server is minus the sum."""

    def moved(rank: Rank) -> tuple[list[float], float]:
        rank.replica.x.zero_()
        rank.transport.barrier()
        rank.constant_epoch(1.0 + rank.worker, 5, 7)
        return rank.x().tolist(), rank.strategy.descent.samples

    ranks = on_ranks(Task(Downpour(n_push=n_push, n_fetch=n_fetch), 4, "unit"), moved)
    for x, _ in ranks:
        assert x == pytest.approx([-7.0 * (1 + 2 + 3)] * len(x))
        assert x == ranks[0][0]
    assert ranks[0][1] == 3 * 7 * 5


def test_a_fetch_does_not_clear_what_is_not_pushed_yet() -> None:
    """A worker's x after its fetch: what is not pushed yet is not in the server's x."""

    def fetched(rank: Rank) -> list[float]:
        start, seen = rank.x(), list[float]()
        rank.constant_epoch(1.0, 1, 4, lambda: seen.append(float((rank.x() - start)[0])))
        assert isinstance(rank.strategy, Downpour)
        assert not torch.any(rank.strategy.movement)
        return seen

    _, seen = on_ranks(Task(Downpour(n_push=2, n_fetch=1), 2, "unit"), fetched)
    assert seen == pytest.approx([0, -2, -2, -4])
