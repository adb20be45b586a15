"""Elastic averaging: the exchange is that of the paper; rank 0 shows the centre."""

import pytest

from strategies.asynchronous_server.easgd import ElasticAveraging
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task


def exchanged(strategy: ElasticAveraging, n: int, steps: int) -> list[tuple[float, list[float], list[float]]]:
    """From 0, worker k's gradient is k in all steps of two epochs, the learning rate 1.

    Return of each rank alpha, an element of x_k after each step and epoch, and one of x~ after each epoch.
    """

    def work(rank: Rank) -> tuple[float, list[float], list[float]]:
        assert isinstance(rank.strategy, ElasticAveraging)
        rank.replica.x.zero_()
        rank.strategy.center.zero_()
        rank.transport.barrier()
        x, center = list[float](), list[float]()
        for _ in range(2):
            rank.constant_epoch(float(rank.transport.rank), 5, steps, lambda: x.append(rank.x()[0].item()))
            x.append(rank.x()[0].item())
            center.append(rank.strategy.model()[0].item())
        return rank.strategy.rate, x, center

    return on_ranks(Task(strategy, n, "unit"), work)


def test_the_exchange_is_that_of_the_paper() -> None:
    (_, centers, shown), (_, x, known) = exchanged(ElasticAveraging(alpha=0.25, tau=2), 2, 3)
    first = [-1, -2 + 0.5, -2.5, -2.5 + 0.625]  # x~ is -0.5; the rest, d = 0.25 (-2.5 - 0): -1.125
    second = [-2.875 + 0.4375, -3.4375, -4.4375 + 0.71875, -3.71875]  # x~ is -1.5625 and -2.28125; nothing is left
    assert x == first + second
    assert centers == shown == known == [-1.125, -2.28125]


@pytest.mark.parametrize("tau", [1, 3, 100])
def test_what_leaves_a_worker_comes_to_the_centre(tau: int) -> None:
    ranks = exchanged(ElasticAveraging(tau=tau), 4, 7)
    assert sum(x[-1] for _, x, _ in ranks) == pytest.approx(-2 * 7 * (1 + 2 + 3))
    for rate, _, centers in ranks:
        assert rate == pytest.approx(0.9 / 3)
        assert centers == ranks[0][2]
