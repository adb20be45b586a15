"""The naive all-reduce: all send to one, one sends to all. The same result as the ring, with a bottleneck.

Rank 0 receives and sends N - 1 whole vectors, so its traffic grows with the number of ranks; the ring's does not. But
it takes 2 messages one after the other where the ring takes 2 (N - 1): for short vectors on few ranks it is faster.
"""

import torch

from strategies.ring_all_reduce import RingAllReduce
from transports.base import Transport


def naive_all_reduce(vector: torch.Tensor, transport: Transport) -> None:
    """Replace `vector` [n] on every rank by the sum over all ranks, in place. Raises PeerLost, WaitTimeout."""
    if transport.rank == 0:
        for peer in transport.peers:
            with transport.recv(peer, "all to one") as received:
                vector.add_(received.vector)
        for work in [transport.isend(vector, peer, "one to all") for peer in transport.peers]:
            work.wait()
    else:
        transport.isend(vector, 0, "all to one").wait()
        transport.recv(0, "one to all").copy_to(vector)


class NaiveAllReduce(RingAllReduce):
    """RingAllReduce with the naive exchange."""

    all_reduce = staticmethod(naive_all_reduce)
