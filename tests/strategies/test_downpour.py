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


@pytest.mark.parametrize("M", [1, 2, 3])
def test_the_momentum_of_the_server_is_applied_once_in_so_many_pushes(M: int) -> None:
    """Algorithm 3 of arXiv 2401.09135 with c = 0, for outer gradients that all differ; M = 1: torch's Nesterov."""
    eta, beta, n = 0.3, 0.8, 6

    def fetched(rank: Rank) -> list[float]:
        start, seen = rank.x(), list[float]()
        if rank.is_server:
            rank.strategy.serve()
        for i in range(0 if rank.is_server else n):
            rank.constant_step(1.0 + i, 1)
            seen.append(float((rank.x() - start)[0]))
        rank.strategy.finish()
        state = rank.strategy.state_dict()
        return [-float(state["m"][0]), int(state["pushes"])] if rank.is_server else seen

    strategy = Downpour(outer_lr=eta, outer_momentum=beta, momentum_every=M)
    kept, seen = on_ranks(Task(strategy, 2, "unit"), fetched)
    x, m, total, expected = 0.0, 0.0, 0.0, list[float]()
    for t in range(n):
        total += 1.0 + t
        x -= eta * (1.0 + t) / M
        if (t + 1) % M == 0:
            m, total = beta * m + total / M, 0.0
            x -= eta * beta * m
        expected.append(x)
    assert seen == pytest.approx(expected, rel=1e-12)
    assert kept == pytest.approx([m, n], rel=1e-12), "what a checkpoint has"
    if M == 1:
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        outer = torch.optim.SGD([parameter], lr=eta, momentum=beta, nesterov=True)
        for t in range(n):
            parameter.grad = torch.full_like(parameter, 1.0 + t)
            outer.step()
        assert float(parameter.detach()) == pytest.approx(seen[-1], rel=1e-12)
