"""Synchronous data-parallel SGD: every rank takes the same step with the mean gradient of all, summed by all."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from strategies.collectives import average
from strategies.common.base import Strategy
from strategies.common.coding import Encoder


@dataclass(kw_only=True)
class AllReduceSGD(Strategy):
    """What the strategies share that differ in how the gradients are summed.

    In float16 a sum n_k g_k must stay below 65504.
    """

    def setup(self) -> None:
        """Know how gradients are coded, if they are."""
        if self.codec:
            _, dense = self.closed_form(self.traffic["worker"], self.transport.world_size, self.replica.x.nbytes)
            self.encoder = Encoder(self.codec, self.replica, self.transport, dense, self.all_reduce)

    @abstractmethod
    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """Replace `vector` [m] on every rank by the sum over all ranks; return the sum of their `n`.

        The vector is a gradient or, with a codec whose codes can be added, a code.
        """

    def step(self, n_samples: int) -> None:
        """g <- sum of n_k g_k / sum of n_k, over all ranks k; x <- optimizer(x, g)."""
        g = self.replica.collect()
        if self.encoder:
            n = self.encoder.mean(g, n_samples)
        else:
            n = self.all_reduce(g.mul_(n_samples), n_samples)
            g.div_(n)
        self.descent.step(g, n)
        self.replica.zero_grad()

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        average(self.replica.b, self.transport)

    def state_dict(self) -> dict[str, Any]:
        """Also what the codec keeps."""
        return super().state_dict() | ({"codec": self.encoder.codec.state_dict()} if self.encoder else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `state_dict`."""
        super().load_state_dict(state)
        if self.encoder:
            self.encoder.codec.load_state_dict(state["codec"])
