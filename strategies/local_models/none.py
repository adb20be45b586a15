"""No communication: every worker trains a model of its own on its part of each batch, and shares nothing.

Not an algorithm but a limit: no strategy that exchanges something takes its steps faster.
"""

from dataclasses import dataclass

import torch

from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import NOTHING, Cost, Footprint, Traits, Weight
from strategies.collectives import broadcast


@dataclass(kw_only=True)
class NoCommunication(Strategy):
    """N workers train N models, each on its part of the batches: the limit of speed, not of accuracy."""

    traits = Traits(agree=False)

    def cost(self, kind: str | None = None) -> Cost:
        """Nothing is sent."""
        return Cost(worker=NOTHING, path=NOTHING)

    def memory(self, role: str) -> Footprint:
        """The mean that is shown has a vector of its own."""
        return Footprint(other="P")

    def weight(self, workers: int) -> Weight | str:
        """Each model has its own worker's gradients only."""
        return "of the models, which share nothing, rank 0's is shown"

    def setup(self) -> None:
        """Allocate a vector for rank 0's parameters."""
        self.shown = self.transport.allocate(self.replica.x.numel(), self.replica.x.dtype)

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k)."""
        self.updater.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()

    def model(self) -> torch.Tensor:
        """Return rank 0's parameters [n]: of N models, one must be shown."""
        self.shown.copy_(self.replica.x)
        broadcast(self.shown, self.transport, "model")
        return self.shown
