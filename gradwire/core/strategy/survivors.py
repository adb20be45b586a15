"""Workers that may die, where the server holds all that matters, and may be started again and take part."""

from collections.abc import Callable
from typing import Any

from gradwire.core.strategy.arrivals import Arrivals
from gradwire.core.strategy.membership import Membership
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.updater import Updater
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import ANY, NO_LIMIT, Message, PeerLost, Transport
from gradwire.core.transports.messages import PeerReturned


class Survivors(Arrivals):
    """Workers that continue after the death of others.

    A worker that has returned has no x yet and receives the server's. `steps[k]` counts the steps of worker k over all
    its lives: it never falls.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.membership = Membership(self.alive, self._transport, self._descent)
        self.alive = self.membership.alive

    def _receive(self, *tags: str) -> Message | None:
        """As in Arrivals; None also if a worker has died or returned. Raises PeerLost when none is left."""
        try:
            return super()._receive(*tags)
        except PeerLost as lost:
            self.lose(lost.rank, lost)
            left = any(not self._transport.is_gone(k) for k in self.alive)  # a worker may close without a goodbye
            may_continue = self._transport.inbox.replay is None and (left or self._transport.may_return())
            if lost.rank == ANY or not may_continue:
                raise
        except PeerReturned as returned:
            self._forget(returned.rank)
            self.membership.returned.add(returned.rank)
        return None

    def lose(self, k: int, lost: PeerLost) -> None:
        """Go on without worker k, which is dead."""
        self._forget(k)

    def _forget(self, k: int) -> None:
        # The first step that lacks its part, where all go in step.
        self.membership.lose(k, self._descent.version + (k in self.waiting))
        self.present.discard(k)
        self.waiting.discard(k)

    def admit(self, may_begin: Callable[[int], bool]) -> None:
        """Let those take part that were started again and `may_begin`, with no fewer steps than the slowest."""
        for k in filter(may_begin, sorted(self.membership.returned)):
            self.membership.admit(k)
            if self._coding:
                self._coding.forget(k)
            self._replies.pop(k, None)
            self.steps[k] = max(self.steps[k], self.slowest)
            self.present.add(k)
            self.welcome(k)

    def welcome(self, k: int) -> None:
        """Send worker k the epoch, the samples so far, its steps, and all of the module's state."""
        self.version_read[k] = self._descent.version
        self.on_sent_x(k)
        position = (self._transport.recorder.epoch, self._descent.samples, self.steps[k])
        self.send(position, k, "position")
        self.send_copy(self._replica.x, k, 0, "initial parameters")
        self.send(self._replica.b.clone(), k, "initial buffers")
        if (others := self._replica.others).numel():
            self.send(others, k, "initial others")


def receive_position(replica: Replica, transport: Transport, updater: Updater) -> int:
    """On a worker: begin where the server is, by what it sends in `welcome`; return the steps of this worker."""
    # No limit after a restart: a server admits no rank while it evaluates, and its death is reported.
    position = transport.recv(SERVER, "position", NO_LIMIT if transport.rejoined else transport.timeout)
    assert position is not None, "only a poll returns None"
    transport.recorder.epoch, updater.samples, steps = position.object
    updater.processed = updater.samples
    transport.recv(SERVER, "initial parameters").copy_to(replica.x)
    transport.recv(SERVER, "initial buffers").copy_to(replica.b)
    if replica.others.numel():
        with transport.recv(SERVER, "initial others") as others:
            replica.others = others.vector
    return int(steps)
