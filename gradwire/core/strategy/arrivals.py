"""The messages of a server's workers in the order in which they come.

A transport can note that order and repeat it, so that a run can be replayed.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.missing import MISSING
from gradwire.core.strategy.workers import Workers
from gradwire.core.transports.base import ANY, Message
from gradwire.core.transports.messages import WaitTimeout
from gradwire.core.transports.replayable import receive_replayable


class Arrivals(Workers):
    """Workers whose messages a server may also take as they come."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.patience: Callable[[], float | None] = lambda: None  # seconds that a message has; None: the usual ones
        self.on_silence: Callable[[], None] = lambda: None  # called when none has come by then

    @property
    def slowest(self) -> int:
        """The fewest steps that a worker of this epoch has taken; the most of all if there is none."""
        return min((self.steps[k] for k in self.present), default=max(self.steps.values()))

    def limit_gap(self, s: int) -> None:
        """Count the steps of a worker that is more than `s` behind the furthest as if it were `s` behind."""
        least = max(self.steps.values()) - s
        self.steps = {k: max(steps, least) for k, steps in self.steps.items()}

    def messages(
        self,
        request: str,
        *notices: str,
        until: float = math.inf,
        on_worker_left: Callable[[], None] = lambda: None,
        may_begin: Callable[[int], bool] = lambda k: True,
    ) -> Iterator[Message]:
        """Yield the messages of one epoch in the order in which they come.

        The sender of a `request` waits for a reply, of `notices` not. The epoch is over when all workers have
        said goodbye, or when `until` samples have been applied and all others wait. `on_worker_left` is called when a
        worker has said goodbye, has died or has returned. One that has returned takes part as soon as `may_begin`
        allows it, if need be in a later epoch. Raises PeerLost when a worker is lost that may not die, or the last;
        RunFailed when it has waited too long for one that has closed without goodbye.
        """
        self.present, self._noted = set(self.alive), self._descent.version
        while not self._is_over(until):
            self.admit(may_begin)
            message = self._receive(request, *notices)
            if message is None:
                on_worker_left()
            else:
                if message.tag == request:
                    self.waiting.add(message.src)
                    self.steps[message.src] += 1
                yield self._take(message)
            self.note_update()

    def _is_over(self, until: float) -> bool:
        if not self.alive:
            return False  # a dead worker may return; if none can, receiving says so
        return not self.present or (self._descent.samples >= until and self.present <= self.waiting)

    def _receive(self, *tags: str) -> Message | None:
        """Return the message that comes next; None if there was silence, or a worker said goodbye, died or returned."""
        try:
            transport, wanted, seconds = self._transport, (*tags, "goodbye", MISSING), self.patience()
            message = (
                transport.recv(ANY, wanted) if seconds is None else receive_replayable(transport, ANY, wanted, seconds)
            )
        except WaitTimeout as error:
            silent = [str(k) for k in sorted(self.present) if self._transport.is_gone(k)]
            if not silent:
                raise
            raise RunFailed(
                f"rank {', '.join(silent)} has closed its transport without a goodbye: its loop must end with "
                f"strategy.finish(); {error}"
            ) from error
        if message is None:
            self.on_silence()
            return None
        if message.src not in self.alive:  # it died after it had sent this
            message.release()
            return None
        if self._is_notice(message):
            return self._receive(*tags)
        if message.tag == "goodbye":
            self.present.discard(message.src)
            return None
        return message

    def drop(self, gradient: Message) -> None:
        """Record that a gradient came too late for its version, and release it."""
        self._record("communicate", "drop", gradient)
        gradient.release()

    def admit(self, may_begin: Callable[[int], bool]) -> None:
        """Let those take part that have been started again: none, where they may not die."""
