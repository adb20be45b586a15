"""Two workers in all orders of their messages."""

from typing import Any

from gradwire.every_order.explore import explore
from gradwire.every_order.runs import Run
from strategies import STRATEGIES, Strategy
from tests.every_order.planted import nobody_dies
from tests.strategies.kinds import variants, with_workers

Kind = type[Strategy]


def goes_on(run: Run) -> str | None:
    return None if run.has_ended else "it has not ended"


SMALL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # options, and how much, where there are too many orders
    "ad_psgd": ({}, {"steps": 1, "own_steps": True}),
    "decoupled_diloco": ({"local_steps": 1, "fragments": 1}, {"steps": 1, "own_steps": True}),
    "easgd": ({"tau": 1}, {"steps": 1}),
    "streaming_diloco": ({}, {"at_most": 8, "random": 2}),
    "hogwild_pp": ({}, {"at_most": 8, "random": 2}),
}
WITH_DEATHS = {"decoupled_diloco": {"at_most": 300, "random": 2}}  # 50 of 1101 orders with a death


def check_all(kind: Kind, **how: Any) -> None:
    options, size = SMALL.get(kind.name, ({}, {}))
    size = size | (WITH_DEATHS.get(kind.name, {}) if "deaths" in how else {})
    report = explore(kind(**options), **how, **size)
    assert report.counterexample is None, report.text()
    assert report.complete or "at_most" in size
    assert all(0 < held == of for held, of in report.held.values())
    assert (report.with_death > 0) == ("deaths" in how)


def test_nothing_breaks(kind: Kind) -> None:
    check_all(kind)


def test_nothing_breaks_with_other_options(kind: Kind) -> None:
    if kind.traits.ranks[1] == 1:  # it takes the batches of more workers than this small case has
        return
    strategy = variants(kind, with_workers(kind, 2))[-1]
    report = explore(strategy, at_most=8, random=0)
    assert report.counterexample is None, report.text()


def test_the_others_go_on(survivor: Kind) -> None:
    check_all(survivor, deaths=1, invariant=goes_on)


def test_the_run_ends() -> None:
    check_all(STRATEGIES["param_server"], deaths=1)
    check_all(STRATEGIES["ring_all_reduce"], deaths=1, invariant=nobody_dies)  # asked where no rank has failed
