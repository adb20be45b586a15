"""The weight of a gradient is what the class says; what it cannot say is not asked, and the report says why."""

from typing import Any

import pytest

from gradwire.core.strategy.traits import Weight
from gradwire.every_order.explore import explore
from gradwire.every_order.invariants import WEIGHED, weight_of
from gradwire.every_order.runs import Case
from tests.runs import strategy_of


@pytest.mark.parametrize(("name", "options", "steps", "gradients"), [
    ("param_server", {}, 2, 2), ("async_param_server", {}, 4, 1), ("async_param_server", {"aggregate": 3}, 4, 3),
    ("backup_workers", {}, 2, 1), ("downpour", {"n_push": 2}, 4, 1), ("gossip", {}, 2, 2), ("hogwild", {}, 2, 1),
    ("downpour", {"outer_lr": 0.5}, 2, 1), ("local_sgd", {"local_steps": 2}, 4, 2),
])  # fmt: skip
def test_it_holds_in_every_order(name: str, options: dict[str, Any], steps: int, gradients: int) -> None:
    strategy = strategy_of(name, **options)
    weight = weight_of(Case(strategy, steps=steps))
    assert isinstance(weight, Weight)
    assert weight.gradients == gradients
    report = explore(strategy, steps=steps)
    assert report.held[WEIGHED] == (report.orders, report.orders), report.text()


@pytest.mark.parametrize(("name", "options", "steps", "why"), [
    ("easgd", {"tau": 1}, 1, "depends on all exchanges that follow"), ("demo", {}, 2, "a code leaves out"),
    ("local_sgd", {"local_steps": 1, "outer_optimizer": "nesterov"}, 2, "momentum"),
    ("local_sgd", {"local_steps": 2}, 3, "the last 1 step make no whole period of 2"),
    ("des_loc", {"local_steps": 1}, 6, "a step of adam is not proportional"),
])  # fmt: skip
def test_a_report_says_why_it_is_not_asked(name: str, options: dict[str, Any], steps: int, why: str) -> None:
    report = explore(strategy_of(name, **options), steps=steps)
    assert WEIGHED not in report.held
    (line,) = [line for line in report.text().splitlines() if WEIGHED in line]
    assert "  not asked: " in line
    assert why in line
