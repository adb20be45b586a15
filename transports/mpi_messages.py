"""Messages of MPI on their way: those that were sent, and long vectors that come when they are read."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

import torch
from mpi4py import MPI

from records.recorder import Recorder
from transports.buffers import Buffers
from transports.headers import Header
from transports.messages import Message, Work

_NOTHING = torch.empty(0)


class Carrier(Protocol):
    """The part of the transport that a message on its way uses."""

    recorder: Recorder
    buffers: Buffers
    unread: dict[tuple[int, int], "LongVector"]
    _closed: bool

    def now(self) -> float:
        """See Mpi."""

    def is_gone(self, peer: int) -> bool:
        """See Mpi."""

    def look(self) -> None:
        """See Mpi."""

    def receive(self, payload: torch.Tensor, nbytes: int, src: int, ticket: int) -> MPI.Request:
        """See Mpi."""

    def wait_until(self, happened: Callable[[], bool], what: str, peer: int) -> None:
        """See Mpi."""


class LongVector(Message):
    """A long vector that comes when it is read: right to where it is to be, if that is known."""

    __slots__ = ("_dtype", "_numel", "_request", "_ticket", "_transport")

    def __init__(self, transport: Carrier, src: int, header: Header, ticket: int) -> None:
        super().__init__(src, header.tag, _NOTHING, None, header.nbytes, header.n)
        self._transport, self._ticket = transport, ticket
        self._numel, self._dtype = header.numel, header.dtype
        self._request: MPI.Request | None = None  # None: not even begun

    def fetch(self, out: torch.Tensor | None = None) -> None:
        """Begin to receive it, unless it is on its way: into `out`, or into a buffer."""
        if self._request is None:
            buffers = self._transport.buffers
            self.tensor = buffers.take(self._numel, self._dtype) if out is None else out
            self._give_back = partial(buffers.give_back, self.tensor) if out is None else None
            self._request = self._transport.receive(self.tensor, self.nbytes, self.src, self._ticket)

    def is_here(self) -> bool:
        """Whether it has been received."""
        if self._request is None or not self._request.Test():
            return False
        self._transport.unread.pop((self.src, self._ticket), None)
        return True

    def _come(self, out: torch.Tensor | None = None) -> None:
        """Return when it is here."""
        self.fetch(out)
        if not self.is_here():
            self._transport.wait_until(self.is_here, f"the elements of {self.tag!r}", self.src)

    @property
    def vector(self) -> torch.Tensor:
        """See Message."""
        self._come()
        return super().vector

    def copy_to(self, out: torch.Tensor) -> None:
        """See Message."""
        fits = out.device.type == "cpu" and out.is_contiguous() and out.dtype == self._dtype
        if fits and out.numel() == self._numel:
            self._come(out)
        super().copy_to(out)

    def detach(self) -> Self:
        """See Message."""
        self._come(torch.empty(self._numel, dtype=self._dtype) if self._request is None else None)
        return super().detach()

    def release(self) -> None:
        """See Message."""
        self._come()
        super().release()


class Sent(Work):
    """Done when MPI needs the payload no more, and not before it would have `left` this rank's card."""

    def __init__(self, transport: Carrier, dst: int, requests: list[MPI.Request], payload: Any, left: float) -> None:
        self._transport, self._dst, self._requests, self._left = transport, dst, requests, left
        self._payload = payload  # lives as long as MPI reads it

    def has_gone(self) -> bool:
        """Whether MPI needs the payload no more."""
        while self._requests and self._requests[-1].Test():
            self._requests.pop()
        if not self._requests:
            self._payload = None
        return not self._requests

    def _is_done(self) -> bool:
        transport = self._transport
        if transport._closed or transport.is_gone(self._dst):
            return True
        return self.has_gone() and (not self._left or transport.now() >= self._left)

    @property
    def done(self) -> bool:
        """See Work."""
        if not self._is_done():
            self._transport.look()
        return self._is_done()

    def wait(self) -> None:
        """See Work."""
        if self._is_done():
            return
        transport = self._transport
        t0 = transport.now()
        transport.wait_until(lambda: self.done, "the release of a message", self._dst)
        transport.recorder.add("wait", t0, transport.now(), peer=self._dst, tag="release")


def memory_of(payload: torch.Tensor | bytes | bytearray, nbytes: int) -> Any:
    """Return the payload as MPI takes it; of a tensor the address, for numpy does not know every dtype."""
    return MPI.memory.fromaddress(payload.data_ptr(), nbytes) if isinstance(payload, torch.Tensor) else payload
