"""Two workers in all orders of their messages."""

from typing import Any

from gradwire.every_order.explore import explore
from gradwire.every_order.runs import Run
from strategies import ADPSGD, STRATEGIES, DecoupledDiLoCo, Strategy
from tests.every_order.planted import nobody_dies

Kind = type[Strategy]


def goes_on(run: Run) -> str | None:
    return None if run.has_ended else "it has not ended"


def check_all(kind: Kind, **how: Any) -> None:
    strategy = kind()
    if kind in (ADPSGD, DecoupledDiLoCo):  # an epoch whose end its ranks look for has orders without end, or many
        how |= {"steps": 1, "own_steps": True}
    if kind is DecoupledDiLoCo:  # else the steps have no fragment
        strategy = DecoupledDiLoCo(local_steps=1, fragments=1)
    report = explore(strategy, **how)
    assert report.counterexample is None, report.text()
    assert report.complete
    assert all(0 < held == of for held, of in report.held.values())
    assert (report.with_death > 0) == ("deaths" in how)


def test_nothing_breaks(kind: Kind) -> None:
    check_all(kind)


def test_the_others_go_on(survivor: Kind) -> None:
    check_all(survivor, deaths=1, invariant=goes_on)


def test_the_run_ends() -> None:
    check_all(STRATEGIES["param_server"], deaths=1)
    check_all(STRATEGIES["ring_all_reduce"], deaths=1, invariant=nobody_dies)  # asked where no rank has failed
