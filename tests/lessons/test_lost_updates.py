"""Lab 5: what is drawn has the traps, values keep those of one client, and training by increments is better."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons.lab import Case, Run
from lessons.labs import LABS
from lessons.labs.lost_updates_words import UPDATES, clients, history
from lessons.lost_updates import Mine
from lessons.report import Report
from lessons.solutions import lost_updates
from lessons.survivors import count_survivors
from lessons.training import compare
from tests.lessons.mistakes import defined, mistakes_of, solution

VALUES = defined(solution("lost_updates", *mistakes_of("lost_updates")["pushes_values"].changes))


def strategy_by(functions: Any) -> Mine:
    @dataclass(kw_only=True)
    class By(Mine):
        push = staticmethod(functions.push)
        fetch = staticmethod(functions.fetch)
        apply = staticmethod(functions.apply)

    return By()


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_every_client_meets_every_trap(seed: int) -> None:
    case = Case(4, 3)
    run = Run(case, LABS["lost_updates"].draw(case, random.Random(seed)))
    for k in clients(run):
        pushes, fetches = history(run, k)
        held = [update for updates, _ in pushes for update in updates]
        assert held == list(range(UPDATES)), "each update is pushed once"
        assert fetches[-1] == (UPDATES, UPDATES), "all is pushed before the last fetch"
        assert any(made > pushed for pushed, made in fetches), "a fetch, and something that is not pushed yet"
        numbers = [fetched for updates, fetched in pushes if updates]
        assert len(set(numbers)) < len(numbers), "pushes without a fetch between them"
        assert any(len(updates) > 1 for updates, _ in pushes), "several updates in one push"


def test_of_values_those_of_one_client_are_left_and_of_increments_all() -> None:
    values = count_survivors(VALUES.push, VALUES.fetch, VALUES.apply, clients=(1, 2, 5), rounds=10)
    assert values["kept"].tolist() == [10, 10, 10]
    assert values["updates"].tolist() == [10, 20, 50]
    each = [[int(part) for part in text.split(", ")] for text in values["of each client"]]
    assert [sorted(parts) for parts in each] == [[10], [0, 10], [0, 0, 0, 0, 10]], "all are of the one that wrote last"
    sums = count_survivors(lost_updates.push, lost_updates.fetch, lost_updates.apply, clients=(1, 2, 5), rounds=10)
    assert sums["kept"].tolist() == [10, 20, 50]
    assert sums["of each client"].tolist() == ["10", "10, 10", "10, 10, 10, 10, 10"]


def test_a_training_by_increments_is_better_and_sends_as_much() -> None:
    right = Report(LABS["lost_updates"], "right", "")
    table = compare(
        right, {"increments": strategy_by(lost_updates), "values": strategy_by(VALUES)}, n_gpus=5, epochs=2, lr=0.03
    )
    assert not isinstance(table, str)
    assert table["accuracy, %"]["increments"] > table["accuracy, %"]["values"] + 20
    assert table["MB sent"]["increments"] == table["MB sent"]["values"]
    assert table["virtual seconds"]["increments"] == pytest.approx(table["virtual seconds"]["values"], rel=0.05)
