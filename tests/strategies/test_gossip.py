"""Gossip: what mixing alone does to the replicas is what its matrix says; then each takes its own step."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from strategies import ADPSGD, Gossip, Single
from strategies.common.forms import closed_form
from tests.ranks import virtual_time
from tests.strategies.loops import Rank, Task, trajectories
from transports.base import Transport


def mixed(
    transport: Transport, task: Task, start: list[float], steps: int, gradients: list[float], dtype: torch.dtype
) -> tuple[list[float], float]:
    """From start[k] in all elements on rank k, an element after each step; then that of model()."""
    rank = Rank(transport, task, torch.nn.Linear(2, 2).to(dtype))
    rank.replica.x.fill_(start[transport.rank])
    found = [start[transport.rank]]
    for _ in range(steps):
        rank.constant_step(gradients[transport.rank], 5)
        found.append(rank.x()[-1].item())
    rank.stop()
    return found, rank.strategy.model()[0].item()


def mix(
    strategy: Gossip,
    start: np.ndarray,
    steps: int,
    gradients: Iterable[float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """All x_k after each step [steps, ranks], and what each rank's model() shows at the end; without gradients."""
    n = len(start)
    given = start.tolist(), steps, list(gradients or [0.0] * n), dtype
    ranks = virtual_time(n).launch(mixed, n, Task(strategy, n, "unit"), *given)
    return np.array([x for x, _ in ranks]).T, np.array([model for _, model in ranks])


def ring(n: int) -> np.ndarray:
    """The mixing matrix, from the picture: a third each for itself and both sides."""
    return (np.roll(np.eye(n), -1, axis=0) + np.eye(n) + np.roll(np.eye(n), 1, axis=0)) / 3


def distance(x: np.ndarray) -> np.ndarray:
    return np.sqrt(((x - x.mean(-1, keepdims=True)) ** 2).sum(-1))


@pytest.mark.parametrize("n", range(3, 9))
def test_on_a_ring_the_mean_stays_and_the_distance_shrinks_with_the_second_eigenvalue(n: int) -> None:
    eigenvalues, vectors = np.linalg.eigh(ring(n))
    second = np.argsort(-abs(eigenvalues))[1]
    rate = abs(eigenvalues[second])
    assert rate == pytest.approx(max(abs(1 + 2 * math.cos(2 * math.pi * m / n)) / 3 for m in range(1, n)), abs=1e-12)

    x, model = mix(Gossip(), 3.0 + vectors[:, second], 10)
    assert distance(x) == pytest.approx(rate ** np.arange(11), rel=1e-6, abs=1e-13), "the slowest that there is"

    start = np.random.default_rng(n).normal(size=n)
    x, model = mix(Gossip(), start, 30)
    expected = np.stack([np.linalg.matrix_power(ring(n), t) @ start for t in range(31)])
    np.testing.assert_allclose(x, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(x.mean(1), start.mean(), rtol=1e-12)
    np.testing.assert_allclose(model, start.mean(), rtol=1e-12)
    assert len(set(model)) == 1
    assert (distance(x) <= distance(start) * rate ** np.arange(31) * (1 + 1e-9) + 1e-14).all()


@pytest.mark.parametrize("topology", ["ring", "exponential"])
def test_two_ranks_take_a_half_each(topology: str) -> None:
    x, _ = mix(Gossip(topology=topology), np.array([1.0, 4.0]), 1)
    assert x[1].tolist() == [2.5, 2.5]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_on_the_exponential_graph_a_power_of_two_has_the_exact_mean_after_log2_steps(rounds: int) -> None:
    n = 2**rounds
    start = np.random.default_rng(n).normal(size=n)
    x, _ = mix(Gossip(topology="exponential"), start, 2 * rounds)
    np.testing.assert_allclose(x.mean(1), start.mean(), rtol=1e-12)
    np.testing.assert_allclose(x[rounds:], start.mean(), rtol=1e-12)
    assert distance(x[rounds - 1]) > 1e-3, "and not before"


@pytest.mark.parametrize("n", [3, 5, 6, 7])
def test_on_the_exponential_graph_any_number_keeps_the_mean_and_comes_to_it(n: int) -> None:
    start = np.random.default_rng(n).normal(size=n)
    x, _ = mix(Gossip(topology="exponential"), start, 60)
    np.testing.assert_allclose(x.mean(1), start.mean(), rtol=1e-12)
    np.testing.assert_allclose(x[-1], start.mean(), rtol=1e-9)


def test_the_step_is_taken_from_the_average() -> None:
    x, _ = mix(Gossip(), 10 * np.arange(4.0), 1, [1.0, 2.0, 3.0, 4.0])
    assert x[1].tolist() == pytest.approx([40 / 3 - 1, 10 - 2, 20 - 3, 50 / 3 - 4])


def test_one_rank_is_one_process_and_sends_nothing() -> None:
    for strategy in (Gossip(), Gossip(topology="exponential"), ADPSGD()):
        alone, expected = (virtual_time(1).launch(trajectories, 1, [Task(one, 1)]) for one in (strategy, Single()))
        steps = [len(run[0][0]) for run in (alone, expected)]
        assert steps[0] == steps[1]
        assert alone == expected
        assert closed_form(strategy, strategy.cost().worker, 1, 1000) == (0, 0)


# What is said of it


def test_the_average_is_in_the_type_of_the_model() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, _ = mix(Gossip(), np.arange(3.0), 1, dtype=dtype)
        assert x[1].tolist() == [1.0] * 3
