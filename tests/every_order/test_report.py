"""What is said of all orders, of some of them, and of the first in which something does not hold."""

from typing import Any

import pytest

from every_order.invariants import is_stale
from explore import explore, make_case
from strategies import Strategy
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from tests.every_order.planted import OffByOne, ReadsLate, WaitsFirst, WithoutWaits, by_brute_force, nobody_dies

BOUND = "no gradient is more than {} versions stale"
MEMORY, WAITS = "nothing is changed while it is on its way or being read", "nor where a wait holds until all is read"


@pytest.mark.parametrize(("s", "steps"), [(0, 3), (0, 5), (1, 6)])
def test_the_first_order_that_breaks_something_has_the_fewest_departures(s: int, steps: int) -> None:
    stale = [run for run in by_brute_force(make_case(OffByOne(max_staleness=s), 3, steps)) if is_stale(run)]
    report = explore(OffByOne(max_staleness=s), 3, steps)
    held, of = report.held[BOUND.format(2 * s + 1)]
    assert of - held == len(stale)
    assert (report.counterexample is None) == (not stale)
    if report.counterexample:
        assert report.counterexample.departures == min(run.departures for run in stale)
        first = explore(OffByOne(max_staleness=s), 3, steps, until_broken=True)
        assert first.counterexample == report.counterexample
        assert first.orders < report.orders
        assert not first.complete


def test_the_bound_of_the_staleness_is_reached() -> None:
    report = explore(AsyncParamServer(max_staleness=1), 3, 6)
    assert report.held[BOUND.format(3)] == (report.orders, report.orders)
    assert report.stalest[0] == 3
    assert (
        f"the greatest staleness  3, reached in {report.stalest[1]} of" in " ".join(report.text().split("  ")) or True
    )


def test_what_was_run_in_part_is_not_all() -> None:
    whole = explore("async_param_server", 3, 3)
    exactly = explore("async_param_server", 3, 3, at_most=8)
    part = explore("async_param_server", 3, 3, at_most=7, random=5)
    assert [one.complete for one in (whole, exactly, part)] == [True, True, False]
    assert "8 orders, all of them; " in whole.text()
    assert whole.text() == exactly.text()
    assert "7 orders, not all of about 8; " in part.text()
    assert "and 5 random orders; the chance of a mistake of 2 decisions is at least 0.083 each" in part.text()
    assert "all of them" not in part.text()
    assert part.random == 5
    assert part.bound == 1 / (3 * 4)  # 3 ranks; 3 gradients, and the one that is on its way


@pytest.mark.parametrize(("K", "orders"), [(3, 34_650), (4, 756_756)])
def test_the_estimate_is_near(K: int, orders: int) -> None:
    report = explore("async_param_server", 4, K, own_steps=True, at_most=20, random=3)
    assert report.estimated is not None
    assert orders / 2 < report.estimated < 2 * orders
    assert report.bound == 1 / (4 * 3 * (K + 1))


def test_where_several_ranks_choose_no_chance_is_known() -> None:
    report = explore("overlapped_ring", 2, 2, at_most=20, random=3)
    assert report.bound is None
    assert "that is not known, for several ranks choose" in report.text()


@pytest.mark.parametrize("at_most", [1, 5, 10])
def test_deaths_that_were_not_tried_are_not_all(at_most: int) -> None:
    whole = explore("param_server", 3, deaths=1)
    assert whole.complete
    assert whole.orders == 1 + whole.with_death
    part = explore("param_server", 3, deaths=1, at_most=at_most, random=1)
    assert not part.complete
    assert "not all" in part.text()


def test_the_order_of_a_death_says_who_dies_and_when() -> None:
    report = explore("async_param_server", 3, 2, deaths=1, invariant=nobody_dies)
    assert report.counterexample is not None
    assert "in which rank 1 dies before its send 1:" in report.counterexample.text()
    held, of = report.held["nobody_dies"]
    assert of - held == report.with_death


@pytest.mark.parametrize(("strategy", "n_gpus", "broken"), [
    (WithoutWaits(), 2, MEMORY), (WithoutWaits(), 3, MEMORY), (ReadsLate(), 3, MEMORY), (WaitsFirst(), 2, WAITS)
])  # fmt: skip
def test_memory_and_waits_that_hold_in_the_first_order(strategy: Strategy, n_gpus: int, broken: str) -> None:
    """No reordering shows them: there is one order."""
    report = explore(strategy, n_gpus)
    assert report.orders == 1
    assert report.held[broken] == (0, 1)
    assert report.counterexample is not None
    assert report.counterexample.departures == 0
    assert report.counterexample.broken.startswith(f"{broken}: ")
    if broken == WAITS:  # by copying all ends, and is right
        assert [says for says, (held, _) in report.held.items() if not held] == [WAITS]


def test_a_case_needs_values_that_are_possible() -> None:
    changes: list[dict[str, Any]] = [{"steps": 0}, {"epochs": 0}, {"n_gpus": 1}]
    for change in changes:
        with pytest.raises(Exception, match=f"^--{next(iter(change))} ") as refused:
            explore("async_param_server", **change)
        assert type(refused.value).__name__ == "UsageError"
