"""Lab 17, solved: synchronised batch normalization, and a loop for uneven inputs, each with one all-reduce a pass."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from lessons.uneven import EPS


def normalize(x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return (x - mean) / sqrt(variance + EPS), and what `differentiate` will need."""
    sums = torch.stack([x.sum(0), x.square().sum(0), torch.full_like(x.sum(0), len(x))])
    dist.all_reduce(sums)
    mean, square, n = sums[0] / sums[2], sums[1] / sums[2], sums[2]
    deviation = (square - mean.square() + EPS).sqrt()
    y = (x - mean) / deviation
    return y, (y, deviation, n)


def differentiate(gradient: torch.Tensor, kept: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the gradient of x, given that of y = normalize(x)[0], this rank's samples by channels."""
    y, deviation, n = kept
    sums = torch.stack([gradient.sum(0), (gradient * y).sum(0)])
    dist.all_reduce(sums)
    return (gradient - sums[0] / n - y * sums[1] / n) / deviation


def train(
    batches: Sequence[torch.Tensor],
    compute: Callable[[torch.Tensor], torch.Tensor],
    update: Callable[[torch.Tensor], None],
    like: torch.Tensor,
) -> None:
    """Train on this rank's batches, step by step with the other ranks, of which some have more batches, some fewer."""
    steps = torch.tensor([len(batches)])
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    for step in range(int(steps)):
        total = like.new_zeros(len(like) + 1)
        if step < len(batches):
            n = len(batches[step])
            total[:-1], total[-1] = n * compute(batches[step]), n
        dist.all_reduce(total)
        update(total[:-1] / total[-1])
