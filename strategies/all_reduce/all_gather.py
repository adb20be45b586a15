"""All-gather: every rank sends its gradient to every other, and each adds them all itself, without a server.

It is 1 message long, but each rank sends N - 1 whole gradients. So it suits short vectors on few ranks, and codes whose
sum would be as long as the vector.
"""

from dataclasses import dataclass

import torch

from gradwire.core.strategy.codes import GATHERED
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Traits
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.collectives import gather_and_add


@dataclass(kw_only=True)
class AllGather(AllReduceSGD):
    """Every rank sends its gradient to every other, and all add all of them: one message long, N - 1 vectors wide."""

    traits = Traits(carries=frozenset({GATHERED}))

    def cost(self, kind: str | None = None) -> Cost:
        """Each rank sends N - 1 gradients at a time."""
        return Cost(worker=Traffic("N - 1", "(N - 1) G"), path=Traffic("1", "(N - 1) G", in_turn="N - 1"))

    def memory(self, role: str) -> Footprint:
        """The sum has a vector of its own."""
        return Footprint(other="P")

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `gather_and_add`."""
        return gather_and_add(vector, self.transport, n)
