"""Lab 6: the closed forms are what is measured, every hint is given to whom it is for, and the clusters are fair."""

import random

import pytest
import torch

from lessons.lab import Case, Run, first
from lessons.labs import clusters
from lessons.labs.clusters import CHOICES, RING, SERVER, TO_CHOOSE, TO_ESTIMATE, Cluster, measure, predict
from lessons.labs.links import Links
from lessons.solutions import links

HINTS = [
    (choice, of_latency, of_bytes, text)
    for choice in (SERVER, RING)
    for of_latency, of_bytes, text in [
        *((term, clusters.RIGHT[choice][1], text) for term, text in clusters.LATENCIES[choice]),
        *((clusters.RIGHT[choice][0], term, text) for term, text in clusters.VECTORS[choice]),
    ]
]


def estimate(cluster: Cluster, of_latency: clusters.Term, of_bytes: clusters.Term) -> float:
    in_bytes = of_bytes(cluster.n) * cluster.nbytes / cluster.bytes_per_second
    return of_latency(cluster.n) * cluster.latency + in_bytes


def explain(choice: str, of_latency: clusters.Term, of_bytes: clusters.Term) -> str:
    answers = [[estimate(like, of_latency, of_bytes) for like in clusters.vary(cluster)] for cluster in TO_ESTIMATE]
    return first(clusters.explain_estimates(choice, TO_ESTIMATE, torch.tensor(answers, dtype=torch.float64)))


@pytest.mark.parametrize("choice", CHOICES)
def test_the_closed_form_of_a_step_is_what_is_measured(choice: str) -> None:
    for cluster in (*TO_CHOOSE, *(TO_ESTIMATE if choice in clusters.RIGHT else ())):
        assert measure(choice, cluster) == pytest.approx(predict(choice, cluster), rel=1e-9)


@pytest.mark.parametrize(("choice", "of_latency", "of_bytes", "text"), HINTS)
def test_each_wrong_count_gets_its_own_hint(
    choice: str, of_latency: clusters.Term, of_bytes: clusters.Term, text: str
) -> None:
    assert explain(choice, of_latency, of_bytes).endswith(f"were measured; {text}")


def test_a_count_that_is_like_no_other_is_told_in_numbers() -> None:
    assert explain(RING, *clusters.RIGHT[RING]) == ""
    said = explain(RING, lambda N: 17, lambda N: 2 * (N - 1) / N)
    assert "with twice the latency yours grows by 17 latencies, with twice the bytes by 1." in said


def test_each_choice_is_the_fastest_as_often_and_nothing_may_be_left_out() -> None:
    best = [clusters.fastest(cluster, predict) for cluster in TO_CHOOSE]
    assert {choice: best.count(choice) for choice in CHOICES} == dict.fromkeys(CHOICES, 3)
    assert [links.choose(*cluster) for cluster in TO_CHOOSE] == best
    others = [[clusters.fastest(cluster, world) for cluster in TO_CHOOSE] for world in clusters.WORLDS.values()]
    assert best not in others
    assert all(others.count(other) == 1 for other in others), "each is told apart"
    for what, other in zip(clusters.WORLDS, others, strict=True):
        assert first(clusters.explain_choices(TO_CHOOSE, other)).endswith(f"; you choose as if {what}")


def test_parts_that_have_come_on_several_ways_are_told_by_what_a_mean_is_made_of() -> None:
    run = Run(Case(4, 12), Links().draw(Case(4, 12), random.Random(5)))
    vectors = [inputs["vector"] for inputs in run.inputs]
    run.results = [{"vector": sum(vectors, vectors[0]) / 4}] * 4
    assert "(2 x rank 0 + rank 1 + rank 2 + rank 3) / 4; expected each rank once" in first(Links().find_faults(run))
