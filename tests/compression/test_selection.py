"""The largest elements of a vector: always as many as were asked for, and the right ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compression.selection import FEW, LONG, above, top

KINDS = ("normal", "sorted", "zeros", "almost all zero", "few values", "scales", "periodic")


def sample(kind: str, n: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a vector of a kind that misleads some method or other."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal(n)
    made = {
        "normal": lambda: normal,
        "sorted": lambda: np.linspace(-1, 1, n),
        "zeros": lambda: np.zeros(n),
        "almost all zero": lambda: normal * (random.random(n) < 0.002),
        "few values": lambda: random.integers(-2, 3, n),
        "scales": lambda: normal * np.repeat(np.logspace(-4, 0, 20), n // 20 + 1)[:n],
        "periodic": lambda: normal * np.where(np.arange(n) % (251 if n > LONG else 7), 1, 1e3),  # in step with a sample
    }
    return torch.from_numpy(np.asarray(made[kind]())).to(dtype)


def check_top(vector: torch.Tensor, *ks: int) -> None:
    """Check against numpy: as many, ascending, none larger left out, of equal ones the first."""
    m = np.abs(vector.numpy())
    for k in ks:
        kth = np.partition(m, len(m) - k)[len(m) - k]
        larger = np.flatnonzero(m > kth)
        expected = np.sort(np.concatenate([larger, np.flatnonzero(m == kth)[: k - len(larger)]]))
        indices = top(vector, k)
        assert indices.dtype == torch.int64
        assert np.array_equal(indices.numpy(), expected)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["float32", "float64"]))
def test_the_k_largest_are_found_in_any_vector(data: st.DataObject, dtype: str) -> None:
    values = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, 1.0, -1.0]))
    vector = torch.tensor(data.draw(st.lists(values, min_size=1, max_size=50)), dtype=getattr(torch, dtype))
    check_top(vector, data.draw(st.integers(1, len(vector))))


@settings(max_examples=30)
@given(st.sampled_from(KINDS), st.integers(5 * FEW, 20 * FEW), st.floats(0, 1), st.integers(0, 99), st.booleans())
def test_the_k_largest_are_found_by_a_sample(kind: str, n: int, logarithm: float, seed: int, single: bool) -> None:
    check_top(sample(kind, n, seed, torch.float32 if single else torch.float64), int(n**logarithm))


@pytest.mark.parametrize("kind", KINDS)
def test_the_k_largest_are_found_in_a_long_vector_and_by_a_sampled_threshold_half_to_twice_as_many(kind: str) -> None:
    vector = sample(kind, LONG + 1, seed=1)
    check_top(vector, 1, 5000, LONG - 10)
    for k in (1, 5000, 500_000):
        indices = above(vector, k)
        assert k <= 2 * len(indices) <= 4 * k
        assert (indices.diff() > 0).all()
        left = torch.ones(len(vector), dtype=torch.bool).index_fill_(0, indices, False)
        assert vector[indices].abs().min() >= vector[left].abs().max(), "the largest"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_finds_elements_as_large(kind: str) -> None:
    vector = sample(kind, LONG + 1, seed=5)
    for k in (1, 1000, 100_000):
        indices = top(vector.cuda(), k).cpu()
        assert (indices.diff() > 0).all()
        assert torch.equal(vector[indices].abs().sort().values, vector[top(vector, k)].abs().sort().values)
        assert k <= 2 * len(above(vector.cuda(), k)) <= 4 * k
