"""Lab 6: the closed forms are what is measured, every hint is given to whom it is for, and what is drawn is fair."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons.labs import estimates
from lessons.labs.clusters import CHOICES, RING, SERVER, Cluster, measure, predict
from lessons.labs.links import draw_clusters, draw_to_choose
from lessons.solutions import links

HINTS = [
    (choice, of_latency, of_bytes, text)
    for choice in (SERVER, RING)
    for of_latency, of_bytes, text in [
        *((term, estimates.RIGHT[choice][1], text) for term, text in estimates.LATENCIES[choice]),
        *((estimates.RIGHT[choice][0], term, text) for term, text in estimates.VECTORS[choice]),
    ]
]


def estimate(cluster: Cluster, of_latency: estimates.Term, of_bytes: estimates.Term) -> float:
    in_bytes = of_bytes(cluster.n) * cluster.nbytes / cluster.bytes_per_second
    return of_latency(cluster.n) * cluster.latency + in_bytes


def explain(choice: str, of_latency: estimates.Term, of_bytes: estimates.Term, seed: int) -> str:
    drawn = draw_clusters(choice, random.Random(seed))
    answers = [[estimate(one, of_latency, of_bytes) for one in estimates.vary(cluster)] for cluster in drawn]
    return estimates.explain_estimates(choice, drawn, torch.tensor(answers, dtype=torch.float64))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("choice", CHOICES)
def test_the_closed_form_of_a_step_is_what_is_measured(choice: str, seed: int) -> None:
    for cluster in draw_to_choose(random.Random(seed))[:3]:
        assert measure(choice, cluster) == pytest.approx(predict(choice, cluster), rel=1e-9)


@pytest.mark.parametrize("choice", [SERVER, RING])
def test_what_is_counted_right_gets_no_hint(choice: str) -> None:
    assert explain(choice, *estimates.RIGHT[choice], seed=1) == ""


@pytest.mark.parametrize(("choice", "of_latency", "of_bytes", "text"), HINTS)
def test_each_wrong_count_gets_its_own_hint(
    choice: str, of_latency: estimates.Term, of_bytes: estimates.Term, text: str
) -> None:
    assert explain(choice, of_latency, of_bytes, seed=2).endswith(f"were measured; {text}")


def test_hints_are_told_apart() -> None:
    for tables in (estimates.LATENCIES, estimates.VECTORS):
        for choice, table in tables.items():
            counts = [tuple(term(n) for n in (5, 6, 7)) for term, _ in table]
            assert len(set(counts)) == len(counts), choice


def test_a_count_that_is_like_no_other_is_told_in_numbers() -> None:
    said = explain(RING, lambda N: 17, lambda N: 2 * (N - 1) / N, seed=3)
    assert "with twice the latency yours grows by 17 latencies" in said


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_each_choice_is_the_fastest_as_often_and_nothing_may_be_left_out(seed: int) -> None:
    drawn = draw_to_choose(random.Random(seed))
    best = [estimates.best_in_theory(one) for one in drawn]
    assert {choice: best.count(choice) for choice in CHOICES} == dict.fromkeys(CHOICES, 3)
    assert [links.choose(*one) for one in drawn] == best
    for of in estimates.WORLDS.values():
        assert [estimates.best_in_theory(of(one)) for one in drawn] != best
