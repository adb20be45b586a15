"""The workers of a server: their gradients, step by step, what they are sent, and the state of each."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import chain
from typing import Any

import torch

from gradwire.core.strategy.codes import Coder
from gradwire.core.strategy.missing import MISSING
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import Message, PeerLost, Transport, Work
from gradwire.core.transports.messages import Delivered

SERVER = 0
GRADIENT = "gradient"


class Workers:
    """The state of a server's workers, the ranks `ranks`; the death of one ends the run: see `Survivors`.

    `alive` have not died; `present` are those of them that have not said goodbye in this epoch, `waiting` those that
    have asked for a reply and have none yet. `steps[k]` counts the steps that worker k has taken. `version_read[k]` is
    the version of x that it computes on. With `coding`, gradients come as codes, and are yielded decoded.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        replica: Replica,
        transport: Transport,
        updater: Updater,
        coding: Coder | None = None,
    ) -> None:
        self._replica, self._transport = replica, transport
        self._descent, self._coding = updater, coding
        self._noted = 0  # the version that was made known last
        self.alive = set(ranks)
        self.present = set(self.alive)
        self.waiting = set[int]()
        self.steps = dict.fromkeys(sorted(self.alive), 0)
        self.version_read: MutableMapping[int, Any] | torch.Tensor = dict.fromkeys(self.steps, 0)
        self.on_sent_x: Callable[[int], None] = lambda k: None  # called when worker k is sent x to continue with
        self._buffers: dict[int, torch.Tensor] = {}
        self._replies: dict[int, Work] = {}

    # Receiving

    def rounds(self) -> Iterator[Iterator[Message]]:
        """Yield, step by step, the gradients of all workers in the order of ranks, until they have said goodbye.

        They are received as they are iterated over. At their end no worker reads an earlier message.
        """
        self.present, self._noted = set(self.alive), self._descent.version
        while first := next(gradients := self._round(), None):
            yield chain([first], gradients)
            self.note_update()

    def _round(self) -> Iterator[Message]:
        for k in sorted(self.present):
            message = self._transport.recv(k, (GRADIENT, "goodbye", MISSING))
            while self._is_notice(message):
                message = self._transport.recv(k, (GRADIENT, "goodbye", MISSING))
            if message.tag == "goodbye":
                self.present.remove(k)
            else:
                yield self._take(message)
        for reply in self._replies.values():
            reply.wait()

    def gather(self, tag: str) -> Iterator[Message]:
        """Yield one message of each worker that is alive, in the order of ranks; all of them then wait for a reply."""
        for k in sorted(self.alive):
            try:
                message = self._transport.recv(k, tag)
            except PeerLost as lost:
                self.lose(k, lost)
                continue
            self.waiting.add(k)
            yield self._take(message)

    def _take(self, message: Message) -> Message:
        message.version = int(self.version_read[message.src])
        return self._coding.decode(message) if self._coding and message.tag == GRADIENT else message

    def _is_notice(self, message: Message) -> bool:
        """Return whether a message names the missing gradients of codes; take it then."""
        if self._coding is None or message.tag != MISSING:
            return False
        self._coding.learn(message)
        return True

    def note_update(self) -> None:
        """Make known that x has a new version, if it has, when the workers have their replies."""
        if self._descent.version != self._noted:
            self._noted = self._transport.recorder.step = self._descent.version
            self._descent.after_update()

    # Replying

    def take_waiting(self, ready: Callable[[int], bool] = lambda k: True) -> Iterator[int]:
        """Yield, by rank, the workers that wait for a reply and are `ready` for it; the caller sends each one."""
        for k in sorted(self.waiting):
            if ready(k):
                self.waiting.remove(k)
                self.version_read[k] = self._descent.version
                yield k

    def send_copy(self, x: torch.Tensor, k: int, n: int, tag: str = "parameters") -> None:
        """Send worker k a copy of x, which may change while k reads it."""
        if k not in self._buffers:
            self._buffers[k] = self._transport.allocate(x.numel(), x.dtype)
        if k in self._replies:
            self._replies[k].wait()
        self._replies[k] = self.send(self._buffers[k].copy_(x), k, tag, n)

    def send_in_place(self, x: torch.Tensor) -> None:
        """Send all present workers x, which they read where it is: see `rounds` for when it may change."""
        for k in sorted(self.present):
            self.version_read[k] = self._descent.version
            self._replies[k] = self.send(x, k, "parameters", self._descent.samples)

    def send(self, value: Any, k: int, tag: str, n: int = 0) -> Work:
        """Send to worker k, unless it is dead."""
        try:
            return self._transport.isend(value, k, tag, n=n)
        except PeerLost as lost:
            self.lose(k, lost)
            return Delivered()

    # Records

    def record_applied(self, message: Message) -> None:
        """Record that what worker k computed on one version of x was applied to another.

        Of several servers, which all apply parts of the same gradients, the first records them.
        """
        if self._transport.rank != SERVER:
            return
        self._transport.recorder.applied = "gradient" if message.tag == GRADIENT else "push"
        self._record("update", "", message)

    def _record(self, phase: str, op: str, message: Message) -> None:
        message.log_receipt()  # which comes first, also where it takes no time
        now, read, applied = self._transport.now(), message.version, self._descent.version
        self._transport.recorder.add(phase, now, now, op, message.src, version_read=read, version_applied=applied)

    # Coming and going

    def state_dict(self) -> dict[int, int]:
        """Return the steps of each worker: see `Strategy.keep`."""
        return dict(self.steps)

    def load_state_dict(self, state: dict[int, int]) -> None:
        """Continue from a `state_dict`."""
        self.steps = dict(state)

    def lose(self, k: int, lost: PeerLost) -> None:
        """Worker k is dead: that ends the run."""
        raise lost

    def end_epoch(self) -> None:
        """Send the living workers the mean of their buffers, the greatest of their counts, and x if theirs is older."""
        b, counts = self._replica.b, self._replica.counts
        total, n = torch.zeros_like(b), 0
        for message in self.gather("buffers"):
            with message:
                total.add_(message.vector)
            n += 1
            if counts.numel():
                with self._transport.recv(message.src, "counts") as theirs:
                    torch.maximum(counts, theirs.vector.cpu(), out=counts)
        if n:
            b.copy_(total.div_(n))
        self._replica.counts = counts
        behind = {k for k in self.waiting if self.version_read[k] < self._descent.version}
        for k in self.take_waiting():
            self.send(b.clone(), k, "mean buffers", n=int(k in behind))
            if counts.numel():
                self.send(counts.clone(), k, "greatest counts")
            if k in behind:
                self.on_sent_x(k)
                self.send_copy(self._replica.x, k, n=self._descent.samples)
