"""Every strategy, in its smallest case with two workers, in all orders of its messages: nothing breaks."""

from typing import Any

import pytest

from every_order.report import Report
from every_order.runs import Run
from explore import explore
from strategies import Strategy
from strategies.local_models.ad_psgd import ADPSGD
from transports.messages import PeerLost


def all_hold(kind: type[Strategy], **how: Any) -> Report:
    # An epoch that ends by samples has orders without end where ranks look for its end.
    one_step = {"steps": 1, "own_steps": True} if issubclass(kind, ADPSGD) else {}
    report = explore(kind(), **one_step, **how)
    assert report.counterexample is None, report.text()
    assert report.complete
    assert "all of them" in report.text()
    assert all(0 < held == of for held, of in report.held.values())
    return report


def test_two_workers(kind: type[Strategy]) -> None:
    report = all_hold(kind)
    assert report.with_death == 0


def test_one_dies_and_the_others_go_on(survivor: type[Strategy]) -> None:
    def goes_on(run: Run) -> str | None:
        return None if run.has_ended else "it has not ended"

    report = all_hold(survivor, deaths=1, invariant=goes_on)
    assert report.with_death > 0
    assert report.held["goes_on"] == (report.orders, report.orders)


@pytest.mark.parametrize("name", ["ring_all_reduce", "param_server"])
def test_one_dies_and_the_run_ends_with_a_line_that_names_it(name: str) -> None:
    def names_it(run: Run) -> str | None:
        if (dead := run.scheduler.dead) is None:
            return None
        told = [rank.error for rank in run.ranks if rank.error]
        is_told = [
            isinstance(error, PeerLost) and error.rank == dead and f"rank {dead}" in str(error) for error in told
        ]
        return None if is_told and all(is_told) else f"of rank {dead}, which died, is said {told}"

    from strategies import STRATEGIES

    report = explore(STRATEGIES[name](), deaths=1, invariant=names_it)
    assert report.with_death > 0
    assert report.counterexample is None, report.text()
