"""The base of strategies whose ranks train models of their own, which are averaged now and then."""

from abc import ABC
from dataclasses import dataclass

import torch

from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Footprint, Traits
from strategies.collectives import average


@dataclass(kw_only=True)
class Drifting(Strategy, ABC):
    """Replicas that drift apart. The run evaluates their mean, at any time.

    Their distance is measured with it: sqrt(mean over k of |x_k - mean|^2) / |mean|, the meter "replica_distance".
    """

    traits = Traits(agree=False)

    def memory(self, role: str) -> Footprint:
        """The mean has a vector of its own."""
        return Footprint(other="P")

    def setup(self) -> None:
        """Allocate the mean, and a number."""
        self.mean = self.transport.allocate(self.replica.x.numel(), self.replica.x.dtype)
        self.square = self.transport.allocate(1, torch.float64)

    def average(self, vector: torch.Tensor, what: str) -> None:
        """Replace `vector` [n] on every rank by the mean over all. Raises PeerLost, WaitTimeout."""
        average(vector, self.transport)

    def finish(self) -> None:
        """Average the buffers over the ranks; each keeps its x_k."""
        self.average(self.replica.b, "buffers")

    def model(self) -> torch.Tensor:
        """Return the mean of all x_k [n].

        It measures their distance from it.
        """
        self.mean.copy_(self.replica.x)
        self.average(self.mean, "parameters")
        self.square[0] = (self.replica.x - self.mean).square().sum(dtype=torch.float64)
        self.average(self.square, "distance")
        if self.transport.rank == 0 and not self.mean.is_meta:
            norm = self.mean.norm(dtype=torch.float64)
            self.transport.recorder.meters["replica_distance"] = float(self.square[0].sqrt() / norm) if norm else 0.0
        return self.mean
