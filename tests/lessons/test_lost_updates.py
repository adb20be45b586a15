"""Lab 5: what is drawn has the traps, values keep those of one client, and training by increments is better."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons.lab import Case, Run
from lessons.labs import LABS
from lessons.labs.increments import UPDATES, clients, fetches_of, pushes_of
from lessons.lost_updates import Mine
from lessons.report import Report
from lessons.solutions import lost_updates
from lessons.survivors import count_survivors
from lessons.training import compare
from transports.base import Transport


def push_value(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(x.clone(), 0, "push")


def fetch_value(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(None, 0, "fetch")
    transport.recv(0, "parameters").copy_to(x)


def write_over(x: torch.Tensor, pushed: torch.Tensor) -> None:
    x.copy_(pushed)


@dataclass(kw_only=True)
class Increments(Mine):
    """By the solution."""

    push = staticmethod(lost_updates.push)
    fetch = staticmethod(lost_updates.fetch)
    apply = staticmethod(lost_updates.apply)


@dataclass(kw_only=True)
class Values(Mine):
    """By values."""

    push = staticmethod(push_value)
    fetch = staticmethod(fetch_value)
    apply = staticmethod(write_over)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_client_meets_every_trap(seed: int) -> None:
    case = Case(4, 3)
    run = Run(case, LABS["lost_updates"].draw(case, random.Random(seed)))
    for k in clients(run):
        pushes, fetches = pushes_of(run, k), fetches_of(run, k)
        held = [update for updates, _ in pushes for update in updates]
        assert held == list(range(UPDATES)), "each update is pushed once"
        assert fetches[-1] == (UPDATES, UPDATES), "all is pushed before the last fetch"
        assert any(made > pushed for pushed, made in fetches), "a fetch, and something that is not pushed yet"
        numbers = [fetched for updates, fetched in pushes if updates]
        assert len(set(numbers)) < len(numbers), "pushes without a fetch between them"
        assert any(len(updates) > 1 for updates, _ in pushes), "several updates in one push"


def test_of_values_those_of_one_client_are_left_and_of_increments_all() -> None:
    values = count_survivors(push_value, fetch_value, write_over, clients=(1, 2, 5), rounds=10)
    assert values["kept"].tolist() == [10, 10, 10]
    assert values["updates"].tolist() == [10, 20, 50]
    each = [[int(one) for one in text.split(", ")] for text in values["of each client"]]
    assert [sorted(one) for one in each] == [[10], [0, 10], [0, 0, 0, 0, 10]], "all are of the one that wrote last"
    sums = count_survivors(lost_updates.push, lost_updates.fetch, lost_updates.apply, clients=(1, 2, 5), rounds=10)
    assert sums["kept"].tolist() == [10, 20, 50]
    assert sums["of each client"].tolist() == ["10", "10, 10", "10, 10, 10, 10, 10"]


def test_a_training_by_increments_is_better_and_sends_as_much() -> None:
    right = Report(LABS["lost_updates"], "right", "")
    table = compare(right, {"increments": Increments(), "values": Values()}, n_gpus=5, epochs=2, lr=0.03)
    assert not isinstance(table, str)
    assert table["accuracy, %"]["increments"] > table["accuracy, %"]["values"] + 20
    assert table["MB sent"]["increments"] == table["MB sent"]["values"]
    assert table["virtual seconds"]["increments"] == pytest.approx(table["virtual seconds"]["values"], rel=0.05)


def test_nothing_is_trained_by_functions_that_are_not_right() -> None:
    wrong = Report(LABS["lost_updates"], "wrong", "")
    assert compare(wrong, {"values": Values()}) == "not trained: first have the check say that it is right"
