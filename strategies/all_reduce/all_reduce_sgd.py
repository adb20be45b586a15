"""Synchronous data-parallel SGD: every rank takes the same step with the mean gradient of all, summed by all."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from gradwire.core.strategy.strategy import Strategy
from strategies.collectives import average


@dataclass(kw_only=True)
class AllReduceSGD(Strategy, ABC):
    """The base of strategies that differ only in how they sum the gradients.

    In float16 a sum n_k g_k must stay below 65504.
    """

    @abstractmethod
    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """Replace `vector` [m] on every rank by the sum over all ranks; return the sum of their `n`.

        The vector is a gradient or, with a codec whose codes can be added, a code.
        """

    def step(self, n_samples: int) -> None:
        """g <- sum of n_k g_k / sum of n_k, over all ranks k; x <- optimizer(x, g)."""
        g = self.replica.collect()
        if self.coding:
            n = self.coding.mean(g, n_samples, self.all_reduce)
            self.updater.lacking = self.coding.missing
        else:
            n = self.all_reduce(g.mul_(n_samples), n_samples)
            g.div_(n)
        self.updater.step(g, n)
        self.replica.zero_grad()

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        average(self.replica.b, self.transport)
