"""Ranks in clusters that have an x each: the cluster of each rank, and the distance between the x."""

from collections.abc import Sequence

import torch


def cut_ranks(N: int, size: int) -> list[range]:
    """Return the ranks of each cluster: `size` that follow each other; the last may be fewer."""
    return [range(first, min(first + size, N)) for first in range(0, N, size)]


def distance_between(xs: Sequence[torch.Tensor], mean: torch.Tensor) -> float:
    """Return sqrt(mean over i of |x_i - mean|^2) / |mean|; 0 where the mean is."""
    squares = [(x_i - mean).square().sum(dtype=torch.float64) for x_i in xs]
    norm, distance = mean.norm(dtype=torch.float64), torch.stack(squares).mean().sqrt()
    return float(distance / norm) if norm else 0.0
