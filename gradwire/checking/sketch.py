"""Sketches of tensors: a few sums with random signs, which tell equal from unequal and are linear."""

from functools import cache
from typing import Any

import numpy as np
import torch

Sketch = np.ndarray[Any, np.dtype[np.float64]]
_SUMS = 16
_ROUNDING = 1e-5  # of the norm: how far equal tensors may lie apart


@cache
def _signs(n: int) -> Sketch:
    signs: Sketch = np.random.default_rng(n).integers(0, 2, n).astype(np.float64) * 2 - 1
    return signs


def sketch(tensor: torch.Tensor) -> Sketch:
    """Return at most 16 sums of the elements with signs, each of another part of the tensor, in float64."""
    found = tensor.detach()
    found = (found.to_dense() if found.is_sparse else found).reshape(-1)
    values = found.double().numpy()
    if not len(values):
        return np.zeros(1)
    k = min(_SUMS, len(values))
    result: Sketch = np.add.reduceat(values * _signs(len(values)), np.arange(k) * len(values) // k)
    return result


def equal(first: Sketch, *others: Sketch) -> bool:
    """Return whether sketches are of tensors that are equal, but for rounding."""
    if any(other.shape != first.shape for other in others):
        return False
    bound = _ROUNDING * max(float(np.linalg.norm(each)) for each in (first, *others)) + 1e-12
    return all(float(np.abs(other - first).max()) <= bound for other in others)


def multiple(of: Sketch, other: Sketch) -> float | None:
    """Return what `of` must be multiplied by to give the other; None: the other is no multiple of it."""
    length = float(of @ of) if of.shape == other.shape else 0.0
    factor = float(of @ other) / length if length else 0.0
    return factor if factor and equal(of * factor, other) else None


def weights(owns: list[Sketch], taken: Sketch) -> list[float] | None:
    """Return by how much each of `owns` went into `taken`, by least squares; None: it is no sum of these."""
    matrix = np.stack(owns, axis=1)
    found, _, rank, _ = np.linalg.lstsq(matrix, taken, rcond=1e-7)
    left = float(np.linalg.norm(matrix @ found - taken))
    if (rank < min(len(owns), len(taken)) and rank > 1) or left > 1e-3 * float(np.linalg.norm(taken)):
        return None
    return [float(weight) for weight in found]
