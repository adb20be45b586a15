"""Messages between ranks, the errors of sending and receiving, and the setup of a transport."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from typing_extensions import override

from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.throttle import Throttle

if TYPE_CHECKING:
    from gradwire.core.transports.base import Transport


class Setup(NamedTuple):
    """The arguments of a rank's transport, from its launcher: see `Transport`."""

    device: torch.device
    timeout: float
    recorder: Recorder
    link: Throttle | None = None


class Alignment(NamedTuple):
    """How the clock of a rank was aligned with rank 0's: where it runs, and two figures in seconds."""

    host: str
    offset: float = 0.0
    """Seconds that are added to the time of the machine's clock."""
    error: float = 0.0
    """The most that the sum is wrong by."""


class PeerLost(RuntimeError):
    """The peer `rank` died or left, so `what` was asked of it can never happen."""

    def __init__(self, rank: int, why: str, what: str = "") -> None:
        super().__init__(f"lost rank {rank}: {why}" + (f" (waited for {what})" if what else ""))
        self.rank = rank
        self.why = why
        self.what = what


class PeerReturned(RuntimeError):
    """The dead peer `rank` was started again, and asks to be let in: see `Transport.admit`."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} was started again")
        self.rank = rank


class WaitTimeout(TimeoutError):
    """A wait for `what` reached its limit; the message names the ranks that were waited for, and so does `ranks`."""

    def __init__(self, rank: int, limit: float, what: str, ranks: Iterable[int]) -> None:
        self.ranks = tuple(ranks)
        self.what = f"{what} from rank {', '.join(map(str, self.ranks))}"
        super().__init__(f"rank {rank} waited {limit:g} s for {self.what}")


class OutOfSharedMemory(RuntimeError):
    """The machine has no shared memory left."""


class Work(ABC):
    """A message on its way. Its tensor is not to be changed until `done`."""

    __slots__ = ()

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the receiver needs the sender's memory no longer (also true once the receiver is dead)."""

    @abstractmethod
    def wait(self) -> None:
        """Block until `done`. Raises WaitTimeout."""


class Delivered(Work):
    """A message whose receiver no longer reads the sender's memory."""

    done = True

    def wait(self) -> None:
        """Return at once."""


@dataclass(slots=True, eq=False, repr=False)
class Pending(Work):
    """A message on its way to rank `_dst`."""

    _transport: "Transport"
    _dst: int

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether it is known to be done."""

    @abstractmethod
    def _look(self, seconds: float) -> None:
        """Update `done`; wait for it at most `seconds`."""

    @property
    @override
    def done(self) -> bool:
        if not self._is_done():
            self._look(0)
        return self._is_done()

    @override
    def wait(self) -> None:
        transport = self._transport
        if self._is_done() or (transport._look(self._dst) and self._is_done()):
            return
        t0 = transport.now()
        wait_until(self._is_done, self._look, transport, "the release of a message", self._dst)
        transport.recorder.add("wait", t0, transport.now(), peer=self._dst, tag="release")


def wait_until(
    happened: Callable[[], bool], look: Callable[[float], None], transport: "Transport", what: str, peer: int
) -> None:
    """Return when something has happened, for which `look(seconds)` waits. Raises WaitTimeout: it names what it was."""
    slices = transport._running.slices(transport.timeout)
    while not happened():
        seconds = next(slices, 0.0)
        if not seconds:
            raise transport.inbox.overdue(what, peer, transport.timeout)
        look(seconds)


class Receiver(Protocol):
    """The calls of a message to the transport that received it."""

    def _note(self, message: "Message", t0: float) -> None: ...

    def _synchronize(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Message:
    """A received message: `tensor` (a vector, None for an object) or `object`, and `n`, the number beside it.

    `tensor` is good until `release()`; after `detach()`, as long as it is kept. `nbytes` is the payload's size.
    """

    src: int
    tag: str
    tensor: torch.Tensor | None
    object: Any
    nbytes: int
    n: Any = 0  # an int or a float, as it was sent
    _give_back: Callable[[], None] | None = None  # tells the sender that its memory is free; None: none of it is read
    order: tuple[float, int] = (0.0, 0)  # when it was sent, and its number among those that arrived
    version: int = -1  # of the parameters that it was computed on, where a server keeps count of them
    _receiver: Receiver | None = None
    _t0: float = 0.0
    _noted: bool = False

    def log_receipt(self) -> Self:
        """Record the receipt now: the message will be held longer than it is read."""
        if self._receiver is not None and not self._noted:
            self._receiver._note(self, self._t0)
            self._noted = True
        return self

    def release(self) -> None:
        """Release the sender's memory, which it may write again. `tensor` is not to be used afterwards."""
        receiver = self._receiver
        if receiver is None:
            return
        if not self._noted:
            receiver._note(self, self._t0)
            self._noted = True
        elif self._give_back is not None:
            receiver._synchronize()
        self._receiver = None
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    def detach(self) -> Self:
        """Replace `tensor` by a copy of the receiver's own, and release the sender's memory.

        The message may be held from here on, and `release()` does nothing more.
        """
        if self.tensor is not None and self._give_back is not None:  # otherwise the tensor is the receiver's own
            self.tensor = self.tensor.clone()
        self.release()
        return self

    def replace(self, tensor: torch.Tensor, give_back: Callable[[], None]) -> None:
        """Replace `tensor` by another of the receiver's own, and release the sender's memory.

        `give_back` is called when the message is released: then that tensor may be used again.
        """
        self.log_receipt()
        if self._receiver is not None and self._give_back is not None:
            self._receiver._synchronize()
            self._give_back()
        self.tensor, self._give_back = tensor, give_back

    def copy_to(self, out: torch.Tensor) -> None:
        """Copy the tensor into `out` (same length) and release the message."""
        try:
            out.copy_(self.vector)
        finally:
            self.release()

    @property
    def vector(self) -> torch.Tensor:
        """The tensor. Raises TypeError if the message carries an object."""
        if self.tensor is None:
            raise TypeError(f"the message {self.tag!r} of rank {self.src} carries an object, not a tensor")
        return self.tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()


def as_vector(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a vector of stride 1, copied only if they do not lie in one piece."""
    # Not reshape(-1): one element, or none, may keep any stride, and then there is no view of its bytes.
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
