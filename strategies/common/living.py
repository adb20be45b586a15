"""The ranks of a run without a server that are alive: rank 0 collects what they have in common, and may not die."""

from collections.abc import Iterator

import torch

from strategies.common.descent import Descent
from transports.base import Message, PeerLost, Transport, Work

ROOT = 0


class Living:
    """Who is alive, as far as this rank knows, and means over them.

    `alive` are the other ranks. A death that rank 0 learns of is recorded once, with the samples of `descent`.
    """

    def __init__(self, transport: Transport, descent: Descent) -> None:
        self._transport = transport
        self._descent = descent
        self.alive = set(transport.peers)

    def average(self, vector: torch.Tensor, what: str) -> None:
        """Replace `vector` [n] on every rank that is alive by the mean over them.

        All call it; through rank 0, which adds in the order of ranks. Raises PeerLost if rank 0 is lost, WaitTimeout.
        """
        transport = self._transport
        if transport.rank != ROOT:
            transport.isend(vector, ROOT, what).wait()
            transport.recv(ROOT, f"mean {what}").copy_to(vector)
            return
        n = 1
        for message in self.gather(what):
            with message:
                vector.add_(message.vector)
            n += 1
        vector.div_(n)
        self.send_all(vector, f"mean {what}")

    def maximize(self, vector: torch.Tensor, what: str) -> None:
        """Replace each element of `vector` [n] on every rank that is alive by the greatest of theirs; see `average`."""
        transport = self._transport
        if transport.rank != ROOT:
            transport.isend(vector, ROOT, what).wait()
            transport.recv(ROOT, f"greatest {what}").copy_to(vector)
            return
        for message in self.gather(what):
            with message:
                torch.maximum(vector, message.vector, out=vector)
        self.send_all(vector, f"greatest {what}")

    def gather(self, tag: str) -> Iterator[Message]:
        """On rank 0: yield one message of each of the others that is alive, in the order of ranks."""
        for k in sorted(self.alive):
            try:
                message = self._transport.recv(k, tag)
            except PeerLost:
                self.bury(k)
                continue
            yield message

    def send_all(self, vector: torch.Tensor | None, tag: str, n: int = 0) -> None:
        """Send to all others that are alive, and return when `vector` may be changed."""
        works: list[tuple[int, Work]] = []
        for k in sorted(self.alive):
            try:
                works.append((k, self._transport.isend(vector, k, tag, n=n)))
            except PeerLost:
                self.bury(k)
        for k, work in works:
            try:
                work.wait()
            except PeerLost:
                self.bury(k)

    def bury(self, k: int) -> None:
        """Rank k is dead: it takes part no more."""
        if k in self.alive:
            self.alive.remove(k)
            if self._transport.rank == ROOT:
                descent = self._descent
                death = {"rank": k, "samples": descent.samples, "step": descent.version, "returned": False}
                self._transport.recorder.deaths.append(death)
