"""NoLoCo: its rounds of two ranks are those of DiLoCo; the pull keeps replicas together."""

import pytest

from strategies import NoLoCo
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task


def drawn(N: int, rounds: int, seed: int = 0) -> list[list[int | None]]:
    """Of each rank the one that it meets in each round, from 1 on."""

    def draw(rank: Rank) -> list[int | None]:
        assert isinstance(rank.strategy, NoLoCo)
        rank.strategy.seed = seed
        return [rank.strategy.partner(number) for number in range(1, rounds + 1)]

    return on_ranks(Task(NoLoCo(), N, "plain"), draw)


@pytest.mark.parametrize("N", [1, 2, 5])
def test_in_each_round_all_ranks_are_in_pairs_but_one_of_an_odd_number(N: int) -> None:
    rounds = list(zip(*drawn(N, 100), strict=True))
    for partners in rounds:
        assert partners.count(None) == N % 2
        assert all(peer is None or (peer != rank and partners[peer] == rank) for rank, peer in enumerate(partners))
    for rank in range(N):
        assert {partners[rank] for partners in rounds} == {*range(N), *([None] * (N % 2))} - {rank}, "it meets all"
    assert (drawn(N, 20, seed=1) != drawn(N, 20, seed=2)) == (N > 2)
