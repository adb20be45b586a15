"""Ring all-reduce: every rank sends to its right neighbour only, and all end with the same sum.

The gradient goes round the ring twice: `ring_all_reduce` in `strategies/collectives.py`, made of its halves
share-reduce (reduce-scatter) and share-only (all-gather). Then every rank takes the same optimizer step. (Patarasuk &
Yuan, 2009; Gibiansky, 2017.)

With a codec, codes that can be added take the gradient's place in the ring. Codes that cannot, as their sum would be as
long as the vector, go to everyone, N - 1 of them from each rank; PowerSGD makes two all-reduces of its factors.
"""

from dataclasses import dataclass

import torch

from gradwire.core.strategy.codes import GATHERED, KINDS, LINEAR
from gradwire.core.strategy.traits import Cost, Traffic, Traits
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.collectives import ring_all_reduce


@dataclass(kw_only=True)
class RingAllReduce(AllReduceSGD):
    """The gradient is cut into N chunks that travel round a ring of ranks: once to be summed, once to be shared."""

    traits = Traits(carries=frozenset(KINDS))

    def cost(self, kind: str | None = None) -> Cost:
        """2 (N - 1) chunks, one after the other; codes that cannot be added go to everyone."""
        if kind == GATHERED:
            return Cost(worker=Traffic("N - 1", "(N - 1) G"), path=Traffic("1", "(N - 1) G"))
        ring = Traffic("4 (N - 1)" if kind == LINEAR else "2 (N - 1)", "2 (N - 1) G / N")
        return Cost(worker=ring, path=ring)

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `ring_all_reduce`."""
        return ring_all_reduce(vector, self.transport, n)
