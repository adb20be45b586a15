"""Collectives: what several ranks compute together, as functions of (vector, transport), each as its paper states it.

Every rank, or every one of the `ranks` that it is for, calls the function with a vector of the same length. N is the
number of ranks, r this rank.

The ring (Patarasuk & Yuan, 2009; Gibiansky, 2017) is two halves. The vector is cut into N chunks. In *share-reduce*
(reduce-scatter), N - 1 steps, each rank passes a chunk to its right neighbour and adds the one that comes from the left
to its own; then rank r holds the finished sum of chunk (r + 1) mod N. In *share-only* (all-gather), N - 1 steps, the
finished chunks travel round and overwrite. Each rank sends 2 (N - 1) messages, twice the vector less two chunks,
however many ranks there are: no algorithm sends less.
"""

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import cast

import torch

from gradwire.core.strategy.broadcast import broadcast as broadcast
from gradwire.core.transports.base import Message, Transport, Work
from strategies.subgroup import subgroup

AllReduce = Callable[..., int]
"""Called with (vector, transport, n): replaces the vector by the sum over all ranks; returns the sum of their n."""
Ring = Generator[None, Message | None, tuple[int, list[Work]]]
"""A `ring_steps` that has not ended."""


def ring_all_reduce(vector: torch.Tensor, transport: Transport, n: int = 0) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    No barrier is needed: a rank overwrites a chunk N - 1 steps after it sent it, and by then the chain of messages
    round the ring has come through the neighbour that reads it. Raises PeerLost, WaitTimeout.
    """
    chunks = vector.tensor_split(transport.world_size)
    n, sent = reduce_scatter(chunks, transport, n)
    sent += all_gather(chunks, transport)
    for work in sent:  # the next backward pass writes into the vector
        work.wait()
    return n


def reduce_scatter(chunks: Sequence[torch.Tensor], transport: Transport, n: int = 0) -> tuple[int, list[Work]]:
    """Share-reduce: chunk (r + 1) mod N becomes the sum over all ranks; the other chunks hold parts of sums.

    `chunks` are the N parts of a vector; `n` travels beside them and is not part of it. Returns the sum of all `n`,
    and the Works: wait for these before you change any chunk but this rank's own.
    Raises PeerLost, WaitTimeout.
    """
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    sent, total = [], n
    for s in range(N - 1):
        sent.append(transport.isend(chunks[(r - s) % N], right, "share-reduce", n=total))
        with transport.recv(left, "share-reduce") as received:
            chunks[(r - s - 1) % N].add_(received.vector)
            total = n + received.n
    return total, sent


def all_gather(chunks: Sequence[torch.Tensor], transport: Transport) -> list[Work]:
    """Share-only: every rank gets chunk (r + 1) mod N of every other rank r, in its place.

    `chunks` are the N parts of a vector. Returns the Works after which it may be changed. Raises PeerLost, WaitTimeout.
    """
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    sent = []
    for s in range(N - 1):
        sent.append(transport.isend(chunks[(r + 1 - s) % N], right, "share-only"))
        transport.recv(left, "share-only").copy_to(chunks[(r - s) % N])
    return sent


def ring_steps(vector: torch.Tensor, transport: Transport, n: int, tag: str) -> Ring:
    """As `ring_all_reduce`, but iterating receives: each `yield` asks for the left neighbour's next message.

    Messages have this `tag`. Returns the sum of all `n`, and the Works after which `vector` [P] may be changed. Raises
    PeerLost.
    """
    N, r = transport.world_size, transport.rank
    right, chunks = (r + 1) % N, vector.tensor_split(N)
    sent, total = [], n
    for s in range(N - 1):
        sent.append(transport.isend(chunks[(r - s) % N], right, tag, n=total))
        with cast(Message, (yield)) as received:
            chunks[(r - s - 1) % N].add_(received.vector)
            total = n + received.n
    for s in range(N - 1):
        sent.append(transport.isend(chunks[(r + 1 - s) % N], right, tag))
        cast(Message, (yield)).copy_to(chunks[(r - s) % N])
    return total, sent


class Rounds:
    """Vectors that go round the ring at the same time, each with a tag of its own, as far as messages have come."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._going: dict[str, Ring] = {}
        self._ended: dict[str, tuple[int, list[Work]]] = {}

    def __contains__(self, tag: str) -> bool:
        return tag in self._going or tag in self._ended

    def begin(self, vector: torch.Tensor, n: int, tag: str) -> None:
        """Begin to replace `vector` [P] by the sum over all ranks. Raises PeerLost."""
        self._going[tag] = ring_steps(vector, self._transport, n, tag)
        self._give(tag, None)

    def advance(self, until: str | None = None) -> None:
        """Pass on messages that have arrived, or all until the vector with the tag `until` has gone round.

        Raises PeerLost, WaitTimeout.
        """
        left = (self._transport.rank - 1) % self._transport.world_size
        # Whichever comes first, so that none waits for the one before it.
        while (tags := tuple(self._going)) and (until is None or until in tags):
            message = self._transport.recv(left, tags) if until else self._transport.recv(left, tags, 0)
            if message is None:
                break
            self._give(message.tag, message)

    def end(self, tag: str) -> int:
        """Wait until a vector has gone round and may be changed; return the sum of all n. Raises as `advance`."""
        self.advance(tag)
        n, sent = self._ended.pop(tag)
        for work in sent:
            work.wait()
        return n

    def _give(self, tag: str, message: Message | None) -> None:
        """Give a vector the message that it waits for, None to begin with."""
        try:
            self._going[tag].send(message)
        except StopIteration as end:
            del self._going[tag]
            self._ended[tag] = end.value


def naive_all_reduce(vector: torch.Tensor, transport: Transport, n: int = 0) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    All send to rank 0, which adds, and sends the sum to all: 2 messages one after the other, but N - 1 whole vectors
    into and out of one rank. Raises PeerLost, WaitTimeout.
    """
    if transport.rank != 0:
        sent = transport.isend(vector, 0, "all to one", n=n)
        total = transport.recv(0, "one to all")  # which rank 0 sends when it has read all vectors
        n = total.n
        total.copy_to(vector)
        sent.wait()
        return n
    for peer in transport.peers:
        with transport.recv(peer, "all to one") as received:
            vector.add_(received.vector)
            n += received.n
    for work in [transport.isend(vector, peer, "one to all", n=n) for peer in transport.peers]:
        work.wait()
    return n


def gather_and_add(vector: torch.Tensor, transport: Transport, n: int = 0, ranks: Sequence[int] | None = None) -> int:
    """Replace `vector` [P] on every rank by the sum over all `ranks`, by default all; return the sum of their `n`.

    Every rank sends its vector to every other, and adds all of them in the order of ranks, so that all have the same
    bits: 1 message long, but N - 1 whole vectors out of and into every rank. Raises PeerLost, WaitTimeout.
    """
    ranks = range(transport.world_size) if ranks is None else ranks
    N, r = len(ranks), ranks.index(transport.rank)
    # Everybody begins with the right neighbour: to begin with rank 0 would wait at its card.
    sent = [transport.isend(vector, ranks[(r + i) % N], "to everyone", n=n) for i in range(1, N)]
    total, n_total = torch.full_like(vector, -0.0), 0  # which leaves -0, a missing gradient, as it is
    for k in ranks:
        if k == transport.rank:
            total.add_(vector)
            n_total += n
            continue
        with transport.recv(k, "to everyone") as received:
            total.add_(received.vector)
            n_total += received.n
    for work in sent:  # until all have read it
        work.wait()
    vector.copy_(total)
    return n_total


def fold(all_reduce: AllReduce, vector: torch.Tensor, transport: Transport, n: int, p: int) -> int:
    """Run an all-reduce that needs p ranks on N ranks; N / 2 <= p <= N.

    The first 2 (N - p) ranks pair up. The even one of a pair gives its vector to the odd one, which adds it, takes part
    for both, and gives the sum back: 2 messages of whole vectors more.

    Time: as much as these and the all-reduce of p ranks; at least one of the 2 less, as a rank that is in no pair need
    not wait for the last. Such a rank is ahead by the time of the first, in which a card passes one vector: where
    cards pass messages in order, a message arrives at most that much later. Where they share fairly, it has at
    least half of its card: at most twice the bytes.
    """
    N, r = transport.world_size, transport.rank
    paired = 2 * (N - p)
    if r < paired and r % 2 == 0:
        transport.isend(vector, r + 1, "fold", n=n).wait()
        total = transport.recv(r + 1, "unfold")
        n = total.n
        total.copy_to(vector)
        return n
    if r < paired:
        with transport.recv(r - 1, "fold") as received:
            vector.add_(received.vector)
            n += received.n
    n = all_reduce(vector, subgroup(transport, [*range(1, paired, 2), *range(paired, N)]), n)
    if r < paired:
        transport.isend(vector, r - 1, "unfold", n=n).wait()
    return n


def folded(all_reduce: AllReduce) -> AllReduce:
    """Make an all-reduce for powers of two one for any N: it is among the largest of them that is not above N."""

    @wraps(all_reduce)
    def of_any_number(vector: torch.Tensor, transport: Transport, n: int = 0) -> int:
        return fold(all_reduce, vector, transport, n, 1 << (transport.world_size.bit_length() - 1))

    return of_any_number


def average(vector: torch.Tensor, transport: Transport) -> None:
    """Replace `vector` [P] on every rank by the mean over all ranks, in place. Raises PeerLost, WaitTimeout."""
    if vector.numel():
        ring_all_reduce(vector, transport)
        vector.div_(transport.world_size)
