"""A message on its way, whose sender may ask whether it is done, or wait for that."""

from abc import abstractmethod
from collections.abc import Callable

from transports.base import Transport
from transports.messages import Work


class Pending(Work):
    """What `transport` has sent to rank `dst`."""

    __slots__ = ("_dst", "_transport")

    def __init__(self, transport: Transport, dst: int) -> None:
        self._transport, self._dst = transport, dst

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether it is known to be done."""

    @abstractmethod
    def _look(self, seconds: float) -> None:
        """Find out whether it is done by now; wait for that, at most so many seconds."""

    @property
    def done(self) -> bool:
        """See Work."""
        if not self._is_done():
            self._look(0)
        return self._is_done()

    def wait(self) -> None:
        """See Work."""
        if self._is_done():
            return
        transport = self._transport
        t0 = transport.now()
        wait_until(self._is_done, self._look, transport, "the release of a message", self._dst)
        transport.recorder.add("wait", t0, transport.now(), peer=self._dst, tag="release")


def wait_until(
    happened: Callable[[], bool], look: Callable[[float], None], transport: Transport, what: str, peer: int
) -> None:
    """Return when something has happened, for which `look(seconds)` waits. Raises WaitTimeout: it names what it was."""
    slices = transport._running.slices(transport.timeout)
    while not happened():
        seconds = next(slices, 0.0)
        if not seconds:
            raise transport.inbox.overdue(what, peer, transport.timeout)
        look(seconds)
