"""Lab 4: what else is named, the rule's closed form, and the digits by late gradients."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons import rates
from lessons.lab import Case, Run, first
from lessons.labs import LABS
from lessons.labs.not_waiting_words import explain_descend, explain_rates
from lessons.report import Report
from lessons.solutions import not_waiting

RIGHT = Report(LABS["not_waiting"], "right", "right")


def test_a_search_that_takes_too_long_is_told_to_take_fewer_steps() -> None:
    said = first(LABS["not_waiting"].comment("loop", Run(Case(1, 1, function="largest_rate"), [])))
    assert said.startswith("; largest_rate may take a second")


@given(st.floats(0.1, 10), st.integers(0, 12))
@settings(max_examples=5)
def test_the_largest_rate_is_the_border_of_the_descent(curvature: float, tau: int) -> None:
    largest = 2 * math.sin(math.pi / (2 * (2 * tau + 1))) / curvature
    assert not_waiting.largest_rate(curvature, tau) == pytest.approx(largest, rel=0.01)
    assert not [*explain_rates([(curvature, tau)], [largest])]
    steps = 800 * (tau + 1)
    inside, outside = (not_waiting.descend(factor * largest, curvature, tau, steps) for factor in (0.97, 1.03))
    assert max(map(abs, inside[steps // 2 :])) < max(map(abs, inside[: steps // 2]))
    assert max(map(abs, outside[steps // 2 :])) > max(map(abs, outside[: steps // 2]))
    for factor in (0.9, 1.1):
        assert [*explain_rates([(curvature, tau), (3.0, 4)], [factor * largest, 0.1])]


@given(st.floats(0.05, 0.5), st.floats(0.3, 3), st.integers(0, 9), st.integers(1, 40))
def test_a_descent_that_is_off_in_one_place_is_found(rate: float, curvature: float, tau: int, at: int) -> None:
    x = not_waiting.descend(rate, curvature, tau, 40)
    assert not [*explain_descend(rate, curvature, tau, 40, x)]
    x[at] += max(1e-3, 1e-3 * abs(x[at]))
    assert f": x_{at} " in first(explain_descend(rate, curvature, tau, 40, x))


# On the digits


def test_three_equal_workers_are_two_versions_late() -> None:
    assert rates.count_staleness(RIGHT, not_waiting.serve, 3) == "2.0"


@pytest.mark.exhaustive
def test_a_rate_that_is_too_large_learns_nothing_and_the_shrunk_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "WORKERS", (1, 4))
    text = rates.shrink(RIGHT, not_waiting.serve, not_waiting.largest_rate, 0.4)
    alone, four, four_smaller = text.splitlines()
    assert float(alone.partition(": ")[2].split()[0]) > 90
    assert "the loss became infinite" in four or float(four.partition(": ")[2].split()[0]) < 30
    assert "rate 0.0890" in four_smaller
    assert float(four_smaller.partition(": ")[2].split()[0]) > 90
    assert float(four_smaller.rpartition(" ")[2]) == pytest.approx(3, abs=0.2)


def test_nothing_is_trained_by_functions_that_are_not_right() -> None:
    hole = Report(LABS["not_waiting"], "hole", "still to be written")
    assert rates.count_staleness(hole, not_waiting.serve, 3).startswith("nothing yet")
    for train in (rates.shrink, rates.sweep):
        assert train(hole, not_waiting.serve, not_waiting.largest_rate, 0.4) == rates.NOT_TRAINED
