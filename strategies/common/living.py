"""The ranks of a run without a server that are alive: rank 0 collects what they have in common, and may not die."""

from collections.abc import Iterator

import torch

from strategies.common.descent import Descent
from strategies.common.replica import Replica
from transports.base import ANY, Message, PeerLost, Transport, Work

ROOT = 0


class Living:
    """The ranks that are alive, as far as this rank knows, and means over them.

    `alive` are the other ranks. A death that rank 0 learns of is recorded once, with the samples of `descent`.
    """

    def __init__(self, transport: Transport, descent: Descent) -> None:
        self._transport = transport
        self._descent = descent
        self.alive = set(transport.peers)

    def begin(self, replica: Replica) -> None:
        """Begin where rank 0 is: with its epoch, samples and steps, and all of the module's state. All call it."""
        descent, recorder = self._descent, self._transport.recorder
        recorder.epoch = self.broadcast(replica.x, "initial parameters", recorder.epoch)
        descent.samples = self.broadcast(replica.b, "initial buffers", descent.samples)
        descent.processed = descent.samples
        descent.version = self.broadcast(None, "initial step", descent.version)
        if (others := replica.others).numel():
            self.broadcast(others, "initial others")
            replica.others = others

    def average(self, vector: torch.Tensor, what: str) -> None:
        """Replace `vector` [n] on every rank that is alive by the mean over them.

        All call it; through rank 0, which adds in the order of ranks. Raises PeerLost if rank 0 is lost, WaitTimeout.
        """
        self.add(vector, what)
        if self._transport.rank == ROOT:
            vector.div_(1 + len(self.alive))
        self.broadcast(vector, f"mean {what}")

    def maximize(self, vector: torch.Tensor, what: str) -> None:
        """Replace each element of `vector` [n] on every rank that is alive by the greatest of theirs; see `average`."""
        if self._transport.rank != ROOT:
            self._transport.isend(vector, ROOT, what).wait()
        else:
            for message in self.gather(what):
                with message:
                    torch.maximum(vector, message.vector, out=vector)
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

    def add(self, vector: torch.Tensor | None, what: str) -> bool:
        """Add the others' vectors [n] to rank 0's, in the order of ranks. All call it, with a vector or all without.

        Rank 0 returns when all have called it, and says whether none of them has died meanwhile.
        """
        if self._transport.rank != ROOT:
            self._transport.isend(vector, ROOT, what).wait()
            return True
        known = len(self.alive)
        for message in self.gather(what):
            with message:
                if vector is not None:
                    vector.add_(message.vector)
        return len(self.alive) == known

    def gather(self, tag: str) -> Iterator[Message]:
        """On rank 0: yield one message of each of the others that is alive, in the order of ranks."""
        for k in sorted(self.alive):
            try:
                message = self._transport.recv(k, tag)
            except PeerLost:
                self.mark_dead(k)
                continue
            yield message

    def send_all(self, vector: torch.Tensor | None, tag: str, n: int = 0) -> None:
        """Send to all others that are alive, and return when `vector` may be changed."""
        works: list[tuple[int, Work]] = []
        for k in sorted(self.alive):
            try:
                works.append((k, self._transport.isend(vector, k, tag, n=n)))
            except PeerLost:
                self.mark_dead(k)
        for k, work in works:
            try:
                work.wait()
            except PeerLost:
                self.mark_dead(k)

    def poll(self, tags: tuple[str, ...]) -> Message | None:
        """Return the first message of these tags that has come from any rank; None if there is none."""
        while any(not self._transport.is_gone(k) for k in self.alive):
            try:
                return self._transport.recv(ANY, tags, timeout=0)
            except PeerLost as lost:
                self._lose(lost)
        return None

    def receive(self, tags: tuple[str, ...]) -> Message:
        """Return the next message of these tags from any rank. Raises PeerLost if rank 0 is lost, WaitTimeout."""
        while True:
            try:
                return self._transport.recv(ANY, tags)
            except PeerLost as lost:
                self._lose(lost)

    def _lose(self, lost: PeerLost) -> None:
        if self._transport.is_gone(ROOT):
            raise lost
        self.mark_dead(lost.rank)

    def mark_dead(self, k: int) -> None:
        """Leave rank k out of all that follows: it has died."""
        if k in self.alive:
            self.alive.remove(k)
            if self._transport.rank == ROOT:
                descent = self._descent
                death = {"rank": k, "samples": descent.samples, "step": descent.version, "returned": False}
                self._transport.recorder.deaths.append(death)
