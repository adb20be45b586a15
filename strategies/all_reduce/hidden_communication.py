"""The meter "hidden_communication": how much of the time of messages a rank computed meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.core.transports.base import Transport


class HiddenCommunication:
    """Of the time in an epoch from the start of what a rank sends to its end, the share in which the rank computed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._on_the_way_s = self._hidden_s = 0.0

    def count(self, begun: float, waits: float) -> None:
        """Count what was begun then, waited for since `waits`, and has ended now."""
        self._on_the_way_s += self._transport.now() - begun
        self._hidden_s += max(0.0, waits - begun)

    @contextmanager
    def waiting(self, begun: float) -> Iterator[None]:
        """Count what was begun then, and is waited for in the block."""
        waits = self._transport.now()
        yield
        self.count(begun, waits)

    def end_epoch(self) -> None:
        """Set the meter, if there was anything, and begin anew."""
        if self._on_the_way_s and self._transport.world_size > 1:
            self._transport.recorder.meters["hidden_communication"] = self._hidden_s / self._on_the_way_s
        self._on_the_way_s = self._hidden_s = 0.0
