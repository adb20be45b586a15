"""Ring all-reduce: every rank sends to its right neighbour only, and all end with the same sum.

The N ranks stand in a ring; the vector is cut into N chunks. In *share-reduce*, N - 1 steps, each rank passes a chunk
on and adds the one that comes in to its own; then rank r holds the finished sum of chunk (r + 1) mod N. In
*share-only*, N - 1 steps, the finished chunks travel round and overwrite. Each rank sends 2 (N - 1) messages, twice the
vector less two chunks, however many ranks there are: bandwidth-optimal (Patarasuk & Yuan, 2009; Gibiansky, 2017).
"""

import torch

from strategies.base import Strategy
from transports.base import Transport


def split(vector: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
    """Cut a vector [n] into `parts` slices whose lengths differ by at most one (some are empty if n < parts)."""
    return torch.tensor_split(vector, parts)


def ring_all_reduce(vector: torch.Tensor, transport: Transport) -> None:
    """Replace `vector` [n] on every rank by the sum over all ranks, in place. Raises PeerLost, WaitTimeout.

    No barrier is needed: a rank overwrites a chunk N - 1 steps after it sent it, and by then the chain of messages
    round the ring has come through the neighbour that reads it.
    """
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    chunks = split(vector, N)
    sent = []
    for s in range(N - 1):  # share-reduce
        sent.append(transport.isend(chunks[(r - s) % N], right, "share-reduce"))
        with transport.recv(left, "share-reduce") as received:
            chunks[(r - s - 1) % N].add_(received.vector)
    for s in range(N - 1):  # share-only
        sent.append(transport.isend(chunks[(r + 1 - s) % N], right, "share-only"))
        with transport.recv(left, "share-only") as received:
            chunks[(r - s) % N].copy_(received.vector)
    for work in sent:  # the next backward pass writes into the vector
        work.wait()


class RingAllReduce(Strategy):
    """Synchronous data-parallel SGD: every rank takes the same step with the mean gradient of all."""

    all_reduce = staticmethod(ring_all_reduce)

    def step(self, n_samples: int) -> None:
        """g <- sum of n_k g_k / sum of n_k, over all ranks k; x <- optimizer(x, g)."""
        g_and_n = self.replica.collect(n_samples)
        self.replica.g.mul_(n_samples)
        self.all_reduce(g_and_n, self.transport)
        self.replica.g.div_(g_and_n[-1])
        self.update(int(g_and_n[-1]))
        self.replica.zero_grad()

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        if self.replica.b.numel():
            self.all_reduce(self.replica.b, self.transport)
            self.replica.b.div_(self.transport.world_size)
