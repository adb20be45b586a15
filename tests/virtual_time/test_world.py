"""The agenda of virtual time: first by time, then in the order in which it was asked for."""

from functools import partial
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.world import World

Plan = tuple[float, list[Any]]  # after how long something happens, and what it asks for when it does
plans: st.SearchStrategy[Any] = st.recursive(
    st.tuples(st.sampled_from([0.0, 0.0, 1.0, 2.5]), st.just([])),
    lambda inner: st.tuples(st.sampled_from([0.0, 0.0, 1.0, 2.5]), st.lists(inner, max_size=3)),
    max_leaves=30,
)


@settings(max_examples=30)
@given(st.lists(plans, max_size=8))
def test_what_is_asked_for_happens_by_time_and_then_in_that_order(asked: list[Plan]) -> None:
    world, numbers = World(OneSwitch(2, 1.0, 0.0)), count()
    happened: list[tuple[float, int]] = []

    def happen(number: int, more: list[Plan]) -> None:
        happened.append((world.time, number))
        for delay, inner in more:
            world.at(world.time + delay, partial(happen, next(numbers), inner))

    for delay, inner in asked:
        world.at(delay, partial(happen, next(numbers), inner))
    world.run()
    assert happened == sorted(happened)
    assert len(happened) == next(numbers)
