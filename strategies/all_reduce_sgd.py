"""Synchronous data-parallel SGD: every rank takes the same step with the mean gradient of all, summed by a collective."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from strategies.base import Strategy
from strategies.collectives import average
from transports.base import Transport


@dataclass(kw_only=True)
class AllReduceSGD(Strategy):
    """What the strategies share that differ in how the gradients are summed."""

    all_reduce: ClassVar[Callable[[torch.Tensor, Transport, int], int]]

    def step(self, n_samples: int) -> None:
        """g <- sum of n_k g_k / sum of n_k, over all ranks k; x <- optimizer(x, g)."""
        g = self.replica.collect().mul_(n_samples)
        n = self.all_reduce(g, self.transport, n_samples)
        self.descent.step(g.div_(n), n)
        self.replica.zero_grad()

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        average(self.replica.b, self.transport)
