"""Which ranks are alive: the deaths and returns of the others, for a run that goes on without them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import PeerLost, Transport


class Membership:
    """The ranks that are alive, of those that it begins with, as far as this rank knows.

    `returned` are those that were started again and take no part yet. Deaths and returns are recorded if this rank
    `records` them: one rank of a run does.
    """

    def __init__(self, ranks: Iterable[int], transport: Transport, updater: Updater, records: bool = True) -> None:
        self.alive, self.returned = set(ranks), set[int]()
        self._transport, self._descent, self._records = transport, updater, records

    def lose(self, k: int, step: int | None = None) -> None:
        """Leave rank k, which is dead, out of all that follows; `step`: the first without it, by default the next."""
        self.returned.discard(k)
        if k not in self.alive:
            return
        self.alive.remove(k)
        if self._records:
            step = self._descent.version if step is None else step
            death = {"rank": k, "samples": self._descent.samples, "step": step, "returned": False}
            self._transport.recorder.deaths.append(death)

    @contextmanager
    def tolerate_death_of(self, k: int) -> Iterator[None]:
        """End the block where rank k turns out to be dead, and leave it out of all that follows."""
        try:
            yield
        except PeerLost:
            self.lose(k)

    def admit(self, k: int) -> None:
        """Let rank k, which has returned, take part."""
        self._transport.admit(k)
        self.returned.remove(k)
        self.alive.add(k)
        [death for death in self._transport.recorder.deaths if death["rank"] == k][-1]["returned"] = True
