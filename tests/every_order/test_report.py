from dataclasses import dataclass
from functools import partial
from itertools import islice

import pytest

from gradwire.core.strategy.workers import SERVER
from gradwire.every_order.explore import explore
from gradwire.every_order.invariants import ask, chosen
from gradwire.every_order.report import examine
from gradwire.every_order.runs import run_once
from gradwire.every_order.search import random_orders
from strategies import AsyncParamServer
from tests.every_order.planted import by_brute_force, nobody_dies
from tests.every_order.planted_bugs import BUGS

MEMORY, WAITS = (
    "nothing is changed while it is on its way or being read",
    "no rank waits for ever if senders wait until all is read",
)


@pytest.mark.parametrize(("bug", "orders", "broken", "departures"), [
    ("updates are loads and stores", 20, 12, 2), ("x is sent without a copy", 20, 18, 1),
])  # fmt: skip
def test_the_first_order_with_a_bug_has_the_fewest_departures(
    bug: str, orders: int, broken: int, departures: int
) -> None:
    case, right, _ = BUGS[bug]
    once = partial(run_once, case, reduced=False)
    found = [run.departures for run in by_brute_force(once) if any(ask(run, chosen(case)).values())]
    assert (len(found), min(found)) == (broken, departures)
    report, first, sound = examine(case), examine(case, until_broken=True), examine(right)
    assert report.orders == orders
    assert max(of - held for held, of in report.held.values()) == broken
    assert report.counterexample
    assert report.counterexample.run.departures == departures
    assert first.counterexample
    assert (first.counterexample.text(), first.complete) == (report.counterexample.text(), False)
    assert (sound.counterexample, sound.complete) == (None, True)


@pytest.mark.parametrize(("s", "steps"), [(0, 3), (1, 6)])
def test_the_bound_of_staleness_is_reached(s: int, steps: int) -> None:
    report = explore(AsyncParamServer(max_staleness=s), 3, steps)
    assert (report.counterexample, report.stalest[0]) == (None, 2 * s + 1)
    assert f" {2 * s + 1}, reached in {report.stalest[1]} of {report.orders}" in report.text()


def test_all_is_said_of_all_orders_only() -> None:
    whole, exactly = explore("async_param_server", 3, 3), explore("async_param_server", 3, 3, at_most=8)
    assert "8 orders, all of them; " in whole.text() == exactly.text()
    part = explore("async_param_server", 3, 3, at_most=7, random=5)
    assert (part.complete, part.random) == (False, 5)
    assert part.bound == 1 / (3 * 4)  # 3 ranks; 3 gradients, and the one that is on its way then
    assert "7 orders, not all of about 8; " in part.text()
    assert "5 random orders; the chance of a mistake of 2 decisions is at least 0.083 each" in part.text()
    assert "all of them" not in part.text()
    many_choose = explore("overlapped_ring", 2, 2, at_most=3, random=1)
    assert many_choose.bound is None
    assert "decisions is not known, for several ranks choose" in many_choose.text()
    assert "about" not in explore("ad_psgd", 3, own_steps=True, at_most=2, random=1).text()


def test_orders_with_a_death_are_among_all() -> None:
    whole = explore("param_server", 3, deaths=1)
    assert (whole.complete, whole.orders) == (True, 1 + whole.with_death)
    for at_most in (1, 5, 10):
        assert "not all" in explore("param_server", 3, deaths=1, at_most=at_most, random=1).text()


def test_an_order_says_who_dies() -> None:
    report = explore("async_param_server", 3, 2, deaths=1, invariant=nobody_dies)
    assert report.counterexample
    assert "in which rank 1 dies before its send 1:" in report.counterexample.text()
    held, of = report.held["nobody_dies"]
    assert of - held == report.with_death


def test_the_estimate_is_near() -> None:
    K, orders = 3, 34_650
    report = explore("async_param_server", 4, K, own_steps=True, at_most=20, random=3)
    assert orders / 2 < (report.estimated or 0) < 2 * orders
    assert report.bound == 1 / (4 * 3 * (K + 1))


@pytest.mark.parametrize(("bug", "broken"), [
    ("a ring does not wait at its end", MEMORY), ("a movement is cleared before it was read", MEMORY),
    ("two ranks send, and wait, before they receive", WAITS),
])  # fmt: skip
def test_memory_and_waits_are_told_of_in_the_first_order(bug: str, broken: str) -> None:
    report = examine(BUGS[bug][0], at_most=1, random=1)
    assert report.held[broken][0] == 0
    if broken == WAITS:  # by copying all is right
        assert [says for says, (held, _) in report.held.items() if not held] == [WAITS]


def test_random_orders_are_fair_in_the_end() -> None:
    """Without that a rank of ad_psgd takes steps without end, and never lets the other learn that the epoch is over."""
    report = explore("ad_psgd", 2, at_most=1, random=1)
    assert (report.orders, report.counterexample) == (2, None), report.text()


@dataclass(kw_only=True)
class LooksForEver(AsyncParamServer):
    """A worker looks for a message that is never sent."""

    def step(self, n_samples: int) -> None:
        while self.transport.recv(SERVER, "never", timeout=0) is None:
            pass


def test_an_order_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.every_order.scheduler.MOST_DECISIONS", 50)
    report = explore(LooksForEver(), at_most=1, random=0)
    assert report.counterexample
    assert report.counterexample.broken == "no rank waits for ever: it has not ended after 50 decisions"


@pytest.mark.parametrize("bug", BUGS)
def test_all_orders_find_each_planted_bug_and_none_without_it(bug: str) -> None:
    wrong, right, deaths = BUGS[bug]
    found = examine(wrong, deaths=deaths, until_broken=True).counterexample
    assert found is not None
    assert found.broken in found.text()
    assert examine(right, deaths=deaths, at_most=10, random=0).counterexample is None


def test_random_orders_find_a_bug_as_often_as_is_said() -> None:
    case = BUGS["a bound is off by one"][0]
    runs = list(islice(random_orders(case, 9, 2), 100))  # of 9 decisions
    assert sum(any(ask(run, chosen(case)).values()) for run in runs) >= 100 / (3 * 9)
