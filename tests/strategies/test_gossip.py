"""Gossip: what mixing alone does to the replicas is what its matrix says; then each takes its own step."""

import math

import numpy as np
import pytest
import torch

from strategies import ADPSGD, Gossip, Single, Strategy
from tests.strategies.kinds import assert_same, on_ranks
from tests.strategies.loops import Rank, Task


def mix(
    strategy: Gossip,
    start: np.ndarray,
    steps: int,
    dtype: torch.dtype = torch.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """An element of all x_k after each step [steps, ranks], and of each rank's model() at the end.

    All elements of x_k begin at start[k], and all gradients are 0.
    """

    def mixed(rank: Rank) -> tuple[list[float], float]:
        k = rank.transport.rank
        rank.replica.x.fill_(start[k])
        found = [start[k]]
        for _ in range(steps):
            rank.constant_step(0.0, 5)
            found.append(rank.x()[-1].item())
        return found, rank.strategy.model()[0].item()

    ranks = on_ranks(Task(strategy, len(start), "unit"), mixed, lambda: torch.nn.Linear(2, 2).to(dtype))
    return np.array([x for x, _ in ranks]).T, np.array([model for _, model in ranks])


def ring(n: int) -> np.ndarray:
    """The mixing matrix, from the picture: a third each for itself and both sides."""
    return (np.roll(np.eye(n), -1, axis=0) + np.eye(n) + np.roll(np.eye(n), 1, axis=0)) / 3


def distance(x: np.ndarray) -> np.ndarray:
    return np.sqrt(((x - x.mean(-1, keepdims=True)) ** 2).sum(-1))


@pytest.mark.parametrize("n", [3, 4, 7])
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


def test_two_ranks_take_a_half_each() -> None:
    x, _ = mix(Gossip(), np.array([1.0, 4.0]), 1)
    assert x[1].tolist() == [2.5, 2.5]


@pytest.mark.parametrize("n", [2, 6, 8])
def test_on_the_exponential_graph_the_mean_stays_and_a_power_of_two_has_it_after_log2_steps(n: int) -> None:
    start = np.random.default_rng(n).normal(size=n)
    x, _ = mix(Gossip(topology="exponential"), start, 60)
    np.testing.assert_allclose(x.mean(1), start.mean(), rtol=1e-12)
    np.testing.assert_allclose(x[-1], start.mean(), rtol=1e-9)
    if (rounds := math.log2(n)).is_integer():
        np.testing.assert_allclose(x[int(rounds) :], start.mean(), rtol=1e-12)
        assert distance(x[int(rounds) - 1]) > 1e-3, "and not before"


@pytest.mark.parametrize("strategy", [Gossip(), Gossip(topology="exponential"), ADPSGD()])
def test_one_rank_is_one_process(strategy: Strategy) -> None:
    assert_same(Task(strategy, 1), Task(Single(), 1))


def test_the_average_is_in_the_type_of_the_model() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, _ = mix(Gossip(), np.arange(3.0), 1, dtype=dtype)
        assert x[1].tolist() == [1.0] * 3
