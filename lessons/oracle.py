"""Lab 3, to be filled in: why data-parallel training is right. The text of the lab is in 3_why_it_is_right.ipynb.

python -m lessons.check oracle lessons/oracle.py

python train.py --strategy lessons.oracle:Mine --n_gpus 4      # when it is right: trains by it
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport
from lessons import ring
from strategies.collectives import ring_all_reduce  # noqa: F401 - for your `average`

Plan = Sequence[Sequence[Sequence[int]]]  # by step, then by rank: the samples


def cut(n_samples: int, B: int, N: int) -> list[list[range]]:
    """Return, by step and then by rank, which of the samples 0 .. n_samples - 1 it takes, each exactly once.

    Step s takes batch s, the samples from s B on, B of them; the last batch may be smaller. The parts of the N ranks
    differ in size by at most one: where a batch has fewer samples than there are ranks, some parts are empty.
    """
    raise NotImplementedError("cut: a list of N ranges for each step; what becomes of the samples that are left over?")


def one_process(
    plan: Plan, gradient: Callable[[Sequence[int]], torch.Tensor], update: Callable[[torch.Tensor], None]
) -> None:
    """Train by one process on what the ranks of a plan have together in each step: the oracle.

    `gradient(samples)` returns the mean gradient over these samples, at the present x; `update(g)` makes one step of
    x with it. Nothing is known of how the batch was cut.
    """
    raise NotImplementedError("one_process: what would somebody who has never heard of ranks do in each step?")


def average(transport: Transport, g: torch.Tensor, n: int) -> int:
    """Replace g [P], on every rank, in place, by the mean over the samples of all; return how many these are.

    Comes with the mean over this rank's n samples. A rank with n = 0 has a mean of nothing: its g is NaN.
    `ring_all_reduce(vector, transport, n)` replaces a vector by the sum over all ranks, and returns the sum of their n.
    """
    raise NotImplementedError("average: what must each rank put into the sum, so that the sum can become the mean?")


def verify(xs: Sequence[torch.Tensor], oracle: torch.Tensor, tolerance: float) -> bool:
    """Return whether N replicas `xs`, each [P], are what training in one process gives, as far as this can be asked.

    `tolerance` says what rounding may do, as a part of the oracle's largest element.
    """
    raise NotImplementedError("verify: what must hold between the replicas, and what between them and the oracle?")


@dataclass(kw_only=True)
class Mine(ring.Mine):
    """The gradients of all ranks become the mean over all samples by `average`, and all take the same step."""

    average = staticmethod(average)

    def step(self, n_samples: int) -> None:
        """g <- mean over all samples; x <- optimizer(x, g)."""
        g = self.replica.collect()
        n = self.average(self.transport, g, n_samples)
        self.updater.step(g, n)
        self.replica.zero_grad()
