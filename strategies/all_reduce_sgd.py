"""Synchronous data-parallel SGD: every rank takes the same step with the mean gradient of all, summed by all."""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from strategies.common.base import Strategy
from strategies.common.collectives import average


@dataclass(kw_only=True)
class AllReduceSGD(Strategy):
    """What the strategies share that differ in how the gradients are summed.

    In float16 a sum n_k g_k must stay below 65504.
    """

    @abstractmethod
    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """Replace `vector` [P] on every rank by the sum over all ranks; return the sum of their `n`."""

    def step(self, n_samples: int) -> None:
        """g <- sum of n_k g_k / sum of n_k, over all ranks k; x <- optimizer(x, g)."""
        g = self.replica.collect().mul_(n_samples)
        n = self.all_reduce(g, n_samples)
        self.descent.step(g.div_(n), n)
        self.replica.zero_grad()

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        average(self.replica.b, self.transport)
