"""The elements of largest magnitude of a vector, in about two passes over it.

A top-k of all n elements sorts or partitions them. Here a threshold a little below the k-th magnitude is estimated from
a regular sample; one pass finds the elements above it; and the exact choice is made among those few. Where the sample
misleads, which shows in how many were found, all elements are partitioned. (Thresholds from a sample: Lin et al., 2018,
Deep gradient compression, arXiv 1712.01887.) Nothing is random: a vector always gives the same elements.
"""

import math

import numpy as np
import torch

FEW, MANY = 2**12, 2**16
"""How many elements a sample has at least: for a threshold that is lower by a margin, and for one that decides."""
LONG = 16 * MANY
"""Shorter vectors have too small a sample for it to save time."""
STRIDES = (1, 3, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191, 16381, 32749)
"""Primes, so that a sample is seldom in step with the rows of a matrix."""


def top(vector: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices, ascending, of the k elements of largest magnitude; on the CPU, of equal ones the first."""
    n = vector.numel()
    if k >= n:
        return torch.arange(n, device=vector.device)
    if vector.is_meta:
        return torch.empty(k, dtype=torch.int64, device="meta")
    if vector.is_cuda:
        return vector.abs().topk(k, sorted=False).indices.sort().values
    limit = threshold(vector, k, FEW, margin=3)
    found = beyond(vector, limit).numpy()
    if len(found) >= k:
        magnitudes = np.abs(vector.numpy()[found])
        return torch.from_numpy(found[largest(magnitudes, k, kth(magnitudes, k))])
    magnitudes = np.abs(vector.numpy())
    if len(found) + np.count_nonzero(magnitudes == limit) < k:
        limit = kth(magnitudes, k)
    return torch.from_numpy(largest(magnitudes, k, limit))


def above(vector: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices, ascending, of about k elements of largest magnitude: between k / 2 and 2 k of them."""
    if k < vector.numel() > LONG:
        found = beyond(vector, threshold(vector, k, MANY))
        if k <= 2 * len(found) <= 4 * k:
            return found
    return top(vector, k)


def threshold(vector: torch.Tensor, k: int, size: int, margin: float = 0) -> float:
    """Estimate the k-th magnitude from a sample of at least `size`; or one lower by `margin` standard errors."""
    n = vector.numel()
    sample = vector[:: max(stride for stride in STRIDES if stride <= max(1, n // size))]
    m = k * len(sample) / n  # how many of the k it has on average; about sqrt(m) more or less
    rank = min(len(sample), math.ceil(m + margin * math.sqrt(m)))
    if vector.is_cuda:
        return float(sample.abs().topk(rank).values[-1])
    return kth(np.abs(sample.numpy()), rank)


def beyond(vector: torch.Tensor, limit: float) -> torch.Tensor:
    """Return the indices, ascending, of the elements above this magnitude."""
    if vector.is_cuda:
        return (vector.abs() > limit).nonzero().flatten()
    array = vector.numpy()
    return torch.from_numpy(np.flatnonzero((array > limit) | (array < -limit)))


def kth(magnitudes: np.ndarray, k: int) -> float:
    """Return the k-th largest."""
    return float(np.partition(magnitudes, -k)[-k])


def largest(magnitudes: np.ndarray, k: int, limit: float) -> np.ndarray:
    """Return the ascending positions of the k largest; `limit` is the k-th value; ties go to the lower index."""
    chosen = magnitudes > limit
    equal = np.flatnonzero(magnitudes == limit)
    chosen[equal[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)
