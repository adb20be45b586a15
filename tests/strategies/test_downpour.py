"""Downpour: no movement is lost, however often it pushes and fetches."""

import pytest
import torch

from strategies.asynchronous_server.downpour import Downpour
from tests.ranks import virtual_time
from tests.strategies.loops import Rank, Task
from transports.base import Transport


def moved(transport: Transport, task: Task) -> tuple[list[float], float]:
    """Each worker's gradient is 1 + its number in 7 steps of learning rate 1: x on the server is minus the sum."""
    rank = Rank(transport, task)
    rank.replica.x.zero_()
    if not rank.is_server:
        transport.recv(0, "zeroed")
    for k in transport.peers if rank.is_server else ():
        transport.isend(None, k, "zeroed")
    if rank.is_server:
        rank.strategy.serve()
    else:
        for _ in range(7):
            rank.constant_step(1.0 + rank.worker, 5)
    rank.strategy.finish()
    rank.close()
    return rank.x().tolist(), rank.strategy.descent.samples


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (3, 2), (7, 7), (100, 100), (1, 100), (100, 1)])
def test_all_movements_are_added_up_once(n_push: int, n_fetch: int) -> None:
    ranks = virtual_time(4).launch(moved, 4, Task(Downpour(n_push=n_push, n_fetch=n_fetch), 4, "unit"))
    for x, _ in ranks:
        assert x == pytest.approx([-7.0 * (1 + 2 + 3)] * len(x))
        assert x == ranks[0][0]
    assert ranks[0][1] == 3 * 7 * 5


def fetched_between_pushes(transport: Transport) -> list[float]:
    """A worker's x after its fetch: what is not pushed yet is not in the server's x."""
    rank = Rank(transport, Task(Downpour(n_push=2, n_fetch=1), 2, "unit"))
    seen: list[float] = []
    if rank.is_server:
        rank.strategy.serve()
    else:
        start = rank.x()
        for _ in range(4):
            rank.constant_step(1.0, 1)
            seen.append(float((rank.x() - start)[0]))
    rank.strategy.finish()
    assert isinstance(rank.strategy, Downpour)
    assert not torch.any(rank.strategy.movement)
    rank.close()
    return seen


def test_a_fetch_does_not_clear_what_is_not_pushed_yet() -> None:
    _, seen = virtual_time(2).launch(fetched_between_pushes, 2)
    assert seen == pytest.approx([0, -2, -2, -4])
