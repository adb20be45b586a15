"""Halving-doubling: partners exchange halves, quarters, ..., then the sums (Rabenseifner, 2004).

Round k of the reduce-scatter is with the partner at distance 2^k, the nearest first: of the part that both still sum,
one keeps the first half, the other the second. The all-gather goes the same way back. As few bytes as the ring, in
2 log2 N messages. In the paper the farthest partner is first, whose messages are the longest: here they are the
shortest, for an uplink between racks may be slow.

N no power of two: see `folded` in `collectives.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport, Work
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.collectives import folded


@folded
def halving_doubling(vector: torch.Tensor, transport: Transport, n: int = 0) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    No barrier is needed: a partner sends a sum back after it has read its message. Raises PeerLost, WaitTimeout.
    """
    N, r = transport.world_size, transport.rank
    return halve_and_double(vector, transport, n, [(r ^ 1 << k, r >> k & 1) for k in range(N.bit_length() - 1)])


def halve_and_double(vector: torch.Tensor, transport: Transport, n: int, rounds: Sequence[tuple[int, int]]) -> int:
    """Sum over all ranks by halving and doubling; return the sum of their `n`.

    `rounds` has the partner of each round, and which half of what both still sum this rank keeps: 0 or 1.
    """
    part, sent, back = vector, list[Work](), []
    for partner, mine in rounds:  # reduce-scatter
        halves = part.tensor_split(2)
        part, theirs = halves[mine], halves[1 - mine]
        sent.append(transport.isend(theirs, partner, "halving", n=n))
        with transport.recv(partner, "halving") as received:
            part.add_(received.vector)
            n += received.n
        back.append((partner, part, theirs))
    for partner, part, theirs in reversed(back):  # all-gather
        sent.append(transport.isend(part, partner, "doubling"))
        transport.recv(partner, "doubling").copy_to(theirs)
    for work in sent:
        work.wait()
    return n


@dataclass(kw_only=True)
class HalvingDoubling(AllReduceSGD):
    """In log2 N rounds, partners exchange halves of what each still sums; then they send back the sums."""

    def cost(self, kind: str | None = None) -> Cost:
        """2 L rounds of p ranks; the others of a pair send a vector and get one."""
        return Cost(
            worker=Traffic("2 (p L + N - p) / N", "2 (N - 1) G / N"),
            path=Traffic("2 L", "2 (p - 1) G / p", powers_of_two=True),
            in_order=Traffic("2 L + 2 (p < N)", "(2 (p - 1) / p + 2 (p < N)) G"),
        )

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `halving_doubling`."""
        return halving_doubling(vector, self.transport, n)
