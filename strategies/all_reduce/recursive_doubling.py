"""Recursive doubling: partners 1, 2, 4, ... away exchange whole vectors (Thakur et al., 2005).

After k rounds each group of 2^k ranks has the sum of its vectors, after log2 N rounds all have that of all. No
all-reduce has fewer rounds; each sends a whole vector. a + b and b + a have the same bits, and so have all ranks.

N no power of two: see `folded` in `collectives.py`.
"""

from dataclasses import dataclass

import torch

from gradwire.core.strategy.traits import Cost, Footprint, Traffic
from gradwire.core.transports.base import Transport
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.collectives import folded


@folded
def recursive_doubling(vector: torch.Tensor, transport: Transport, n: int = 0) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    A second vector receives messages while the partner still reads the first. Raises PeerLost, WaitTimeout.
    """
    distance = 1
    while distance < transport.world_size:
        partner = transport.rank ^ distance
        sent = transport.isend(vector, partner, "doubling", n=n)
        with transport.recv(partner, "doubling") as received:
            if not sent.done:  # the partner reads this vector, and waits in its turn
                received.detach()
            sent.wait()
            vector.add_(received.vector)
            n += received.n
        distance *= 2
    return n


@dataclass(kw_only=True)
class RecursiveDoubling(AllReduceSGD):
    """In log2 N rounds, partners at distances 1, 2, 4, ... exchange whole gradients, and add: for short ones."""

    def cost(self, kind: str | None = None) -> Cost:
        """L rounds of p ranks; the others of a pair send a vector and get one."""
        return Cost(
            worker=Traffic("(p L + 2 (N - p)) / N", "(p L + 2 (N - p)) G / N"),
            path=Traffic("L", "L G", powers_of_two=True),
            in_order=Traffic("L + (p < N) + (2 (N - p) > p)", "(L + 2 (p < N)) G"),
        )

    def memory(self, role: str) -> Footprint:
        """Received vectors have memory of their own."""
        return Footprint(other="P")

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `recursive_doubling`."""
        return recursive_doubling(vector, self.transport, n)
