"""Downpour: a checkpoint has the delayed momentum of the server."""

import pytest

from strategies import Downpour
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task


def test_a_state_has_the_momentum_and_counts_the_pushes() -> None:
    """Outer gradients 1 to 6, of which each three make m <- beta m + their mean."""

    def saved(rank: Rank) -> list[float]:
        if rank.is_server:
            rank.strategy.serve()
        for i in range(0 if rank.is_server else 6):
            rank.constant_step(1.0 + i, 1)
        rank.strategy.finish()
        state = rank.strategy.state_dict()
        return [-float(state["m"][0]), int(state["pushes"])] if rank.is_server else []

    strategy = Downpour(outer_momentum=0.8, momentum_every=3)
    assert on_ranks(Task(strategy, 2, "unit"), saved)[0] == pytest.approx([0.8 * 2 + 5, 6], rel=1e-12)
