"""Messages of MPI on their way: those that were sent, and long vectors that come when they are read."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from mpi4py import MPI

from transports.headers import Header
from transports.messages import Message, wait_until
from transports.remote import Sending

if TYPE_CHECKING:
    from transports.mpi import Mpi

_NOTHING = torch.empty(0)


class LongVector(Message):
    """A long vector that comes when it is read: right to where it is to be, if that is known."""

    __slots__ = ("_dtype", "_mpi", "_numel", "_request", "_ticket")

    def __init__(self, transport: "Mpi", src: int, header: Header, ticket: int) -> None:
        super().__init__(src, header.tag, _NOTHING, None, header.nbytes, header.n)
        self._mpi, self._ticket = transport, ticket
        self._numel, self._dtype = header.numel, header.dtype
        self._request: MPI.Request | None = None  # None: not even begun

    def fetch(self, out: torch.Tensor | None = None) -> None:
        """Begin to receive it, unless it is on its way: into `out`, or into a buffer."""
        if self._request is None:
            buffers = self._mpi.buffers
            self.tensor = buffers.take(self._numel, self._dtype) if out is None else out
            self._give_back = partial(buffers.give_back, self.tensor) if out is None else None
            self._request = self._mpi.receive(self.tensor, self.nbytes, self.src, self._ticket)

    def is_here(self) -> bool:
        """Whether it has been received."""
        if self._request is None or not self._request.Test():
            return False
        self._mpi.unread.pop((self.src, self._ticket), None)
        return True

    def _come(self, out: torch.Tensor | None = None) -> None:
        """Return when it is here."""
        self.fetch(out)
        wait_until(
            self.is_here,
            partial(self._mpi.wait_for, self.is_here),
            self._mpi,
            f"the elements of {self.tag!r}",
            self.src,
        )

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


@dataclass(slots=True, eq=False, repr=False)
class Sent(Sending):
    """See Sending."""

    _transport: "Mpi"
    _requests: list[MPI.Request]
    _payload: Any  # lives as long as MPI reads it

    def has_gone(self) -> bool:
        """See Sending: whether MPI needs the payload no more."""
        while self._requests and self._requests[-1].Test():
            self._requests.pop()
        if not self._requests:
            self._payload = None
        return not self._requests

    def _look(self, seconds: float) -> None:
        if seconds:
            self._transport.wait_for(lambda: self.done, seconds)
        else:
            self._transport.look()


def memory_of(payload: torch.Tensor | bytes | bytearray, nbytes: int) -> Any:
    """Return the payload as MPI takes it; of a tensor the address, for numpy does not know every dtype."""
    return MPI.memory.fromaddress(payload.data_ptr(), nbytes) if isinstance(payload, torch.Tensor) else payload
