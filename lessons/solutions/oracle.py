"""Lab 3, solved: the batches, the oracle, the weighted mean of `all_reduce_sgd.py`, and the comparison."""

from collections.abc import Callable, Sequence

import torch

from gradwire.core.transports.base import Transport
from strategies.collectives import ring_all_reduce

Plan = Sequence[Sequence[Sequence[int]]]


def cut(n_samples: int, B: int, N: int) -> list[list[range]]:
    """Return, by step and then by rank, which of the samples 0 .. n_samples - 1 it takes, each exactly once."""
    plan = []
    for start in range(0, n_samples, B):
        size = min(B, n_samples - start)
        plan.append([range(start + size * k // N, start + size * (k + 1) // N) for k in range(N)])
    return plan


def one_process(
    plan: Plan, gradient: Callable[[Sequence[int]], torch.Tensor], update: Callable[[torch.Tensor], None]
) -> None:
    """Train by one process on what the ranks of a plan have together in each step: the oracle."""
    for parts in plan:
        update(gradient([sample for part in parts for sample in part]))


def average(transport: Transport, g: torch.Tensor, n: int) -> int:
    """Replace g [P], on every rank, in place, by the mean over the samples of all; return how many these are."""
    if n == 0:
        g.zero_()  # 0 x NaN would be NaN
    total = ring_all_reduce(g.mul_(n), transport, n)
    g.div_(total)
    return total


def verify(xs: Sequence[torch.Tensor], oracle: torch.Tensor, tolerance: float) -> bool:
    """Return whether N replicas `xs`, each [P], are what training in one process gives, as far as this can be asked."""
    alike = all(torch.equal(x, xs[0]) for x in xs)
    error = (xs[0] - oracle).abs().max()
    return alike and bool(error <= tolerance * oracle.abs().max())
