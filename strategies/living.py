"""The ranks of a run without a server that are alive: rank 0 collects their common state, and may not die."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradwire.core.strategy.membership import Membership
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import ANY, Message, PeerLost, Transport, Work

ROOT = 0
PROGRESS, OVER = "progress", "over"  # to rank 0: the samples of a step; from it: the epoch has its samples
DONE, END = "exchanged", "end of exchanges"  # to rank 0: no answer is outstanding; from it: nor anybody else's


class Living(Membership):
    """The other ranks that are alive, and means over them and this one; rank 0 records the deaths."""

    def __init__(self, transport: Transport, updater: Updater) -> None:
        super().__init__(transport.peers, transport, updater, records=transport.rank == ROOT)

    def begin(self, replica: Replica) -> None:
        """Begin where rank 0 is: with its epoch, samples and steps, and all of the module's state. All call it."""
        updater, recorder = self._descent, self._transport.recorder
        recorder.epoch = self.broadcast(replica.x, "initial parameters", recorder.epoch)
        updater.samples = self.broadcast(replica.b, "initial buffers", updater.samples)
        updater.processed = updater.samples
        updater.version = self.broadcast(None, "initial step", updater.version)
        if (others := replica.others).numel():
            self.broadcast(others, "initial others")
            replica.others = others

    def average(self, vector: torch.Tensor, what: str) -> None:
        """Replace `vector` [n] on every rank that is alive by the mean over them.

        All call it; through rank 0, which adds in the order of ranks. Raises PeerLost if rank 0 is lost, WaitTimeout.
        """
        self.reduce(vector, what)
        if self._transport.rank == ROOT:
            vector.div_(1 + len(self.alive))
        self.broadcast(vector, f"mean {what}")

    def maximize(self, vector: torch.Tensor, what: str) -> None:
        """Replace each element of `vector` [n] on every rank that is alive by the greatest of theirs; see `average`."""
        self.reduce(vector, what, torch.maximum)
        self.broadcast(vector, f"greatest {what}")

    def broadcast(self, vector: torch.Tensor | None, tag: str, n: int = 0) -> int:
        """Replace `vector` on every rank that is alive by rank 0's, and return rank 0's `n`. All call it."""
        if self._transport.rank == ROOT:
            self.send_all(vector, tag, n)
            return n
        message = self._transport.recv(ROOT, tag)
        if vector is not None:
            message.copy_to(vector)
        return message.n

    def reduce(self, vector: torch.Tensor | None, what: str, combine: Callable[..., Any] = torch.add) -> bool:
        """Add the others' vectors [n] to rank 0's, or `combine` them, in the order of ranks.

        All call it, with a vector or all without. Rank 0 returns when all have called it, and says whether none of them
        has died meanwhile.
        """
        if self._transport.rank != ROOT:
            self._transport.isend(vector, ROOT, what).wait()
            return True
        known = len(self.alive)
        for message in self.gather(what):
            with message:
                if vector is not None:
                    combine(vector, message.vector, out=vector)
        return len(self.alive) == known

    def gather(self, tag: str) -> Iterator[Message]:
        """On rank 0: yield one message of each of the others that is alive, in the order of ranks."""
        for k in sorted(self.alive):
            with self.tolerate_death_of(k):
                yield self._transport.recv(k, tag)

    def send_all(self, vector: torch.Tensor | None, tag: str, n: int = 0) -> None:
        """Send to all others that are alive, and return when `vector` may be changed."""
        works: list[tuple[int, Work]] = []
        for k in sorted(self.alive):
            with self.tolerate_death_of(k):
                works.append((k, self._transport.isend(vector, k, tag, n=n)))
        for k, work in works:
            with self.tolerate_death_of(k):
                work.wait()

    def poll(self, tags: tuple[str, ...]) -> Message | None:
        """Return the first message of these tags that has come from any rank; None if there is none."""
        while any(not self._transport.is_gone(k) for k in self.alive):
            try:
                return self._transport.recv(ANY, tags, timeout=0)
            except PeerLost as lost:
                self._go_on(lost)
        return None

    def receive(self, tags: tuple[str, ...]) -> Message:
        """Return the next message of these tags from any rank. Raises PeerLost if rank 0 is lost, WaitTimeout."""
        while True:
            try:
                return self._transport.recv(ANY, tags)
            except PeerLost as lost:
                self._go_on(lost)

    def _go_on(self, lost: PeerLost) -> None:
        if self._transport.is_gone(ROOT):
            raise lost
        self.lose(lost.rank)


class SharedEpoch:
    """An epoch that ends when all ranks together have its samples, on a rank that waits for none of the others.

    Each rank reports its steps to rank 0, which announces the end of the epoch to all.
    Meanwhile the ranks send each other messages of the tag `request`, which the methods yield.
    """

    def __init__(self, transport: Transport, updater: Updater, living: Living, request: str) -> None:
        self._transport, self._descent = transport, updater
        self._living, self._request = living, request
        self.is_over = self._has_ended = False

    def count(self, n_samples: int) -> None:
        """Tell rank 0 of a step."""
        if self._transport.rank != ROOT:
            self._transport.isend(None, ROOT, PROGRESS, n=n_samples)

    def requests(self) -> Iterator[Message]:
        """Yield the requests that have come. On rank 0: end the epoch if it has its samples."""
        while (message := self._living.poll((self._request, PROGRESS, OVER))) is not None:
            yield from self._handle(message)
        if self._transport.rank == ROOT and not self.is_over and self._descent.is_over:
            self.is_over = True
            self._living.send_all(None, OVER)

    def end(self) -> Iterator[Message]:
        """Yield the requests that come until no rank waits for an answer: none is left for the next epoch.

        Then `updater` has the samples of all on every rank.
        """
        if self._transport.rank == ROOT:
            for _ in self._living.gather(DONE):
                pass
            yield from self.requests()
            self._living.send_all(None, END, n=self._descent.samples)
        else:
            self._transport.isend(None, ROOT, DONE)
            self._has_ended = False
            while not self._has_ended:
                yield from self._handle(self._living.receive((self._request, PROGRESS, OVER, END)))

    def _handle(self, message: Message) -> Iterator[Message]:
        if message.tag == PROGRESS:
            self._descent.samples += message.n
            self._descent.processed += message.n
        elif message.tag == OVER:
            self.is_over = True
        elif message.tag == END:
            self._has_ended = True
            self._descent.samples = self._descent.processed = message.n
        else:
            yield message
