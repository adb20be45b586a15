"""What transports between machines have in common: no memory is shared, vectors travel as copies, clocks differ."""

import os
import pickle
import platform
import threading
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from gradwire.clusters.headers import Header, Kind
from gradwire.core.transports import timing
from gradwire.core.transports.base import CLOSED, Transport
from gradwire.core.transports.messages import Alignment, Message, PeerLost, Pending, Setup, Work, as_vector
from gradwire.core.transports.throttle import Held

_KEPT = 16  # vectors for reuse; a burst of messages leaves no more
_ROUNDS = 20
_CLOCK = "(clock)"
# Why a peer is gone that has said so, and whether its work is undone.
WHY = {Kind.GOODBYE: (CLOSED, False), Kind.FAILED: ("it failed", True)}
_PARTING_S = 2.0  # that a rank which fails has for its goodbyes


class Remote(Transport):
    """`Transport` between ranks that may run on several machines."""

    same_machine = False
    alignment: Alignment
    _from_gpu = False  # whether vectors are sent from device to device

    def __init__(self, rank: int, world_size: int, setup: Setup) -> None:
        self.alignment = Alignment(platform.node())
        super().__init__(rank, world_size, setup.device, setup.timeout, setup.recorder)
        self._farewell = Kind.GOODBYE  # sent to all peers at the end
        self._link = setup.link  # which tells times: it holds messages back from the alignment of the clocks on
        self.recorder.rank = self.rank

    def now(self) -> float:
        """Return the time in seconds: rank 0's, once the clocks are aligned."""
        return timing.now() + self.alignment.offset

    def align_clocks(self) -> None:
        """Make `now` the same on all ranks, which all call this before they do anything else.

        The algorithm is Cristian's (Probabilistic clock synchronization, 1989): an answer of rank 0 shows its time in
        the middle between question and answer, wrong by at most half of that time; the fastest of 20 answers counts.
        Where two ranks read the same clock there is nothing to align. Raises PeerLost, WaitTimeout.
        """
        for peer in self.peers if self.rank == 0 else [0]:
            self._tell(peer, _clock_of_this_process())
            if self._hear(peer) == _clock_of_this_process():
                continue
            if self.rank == 0:
                for _ in range(_ROUNDS):  # an answer each
                    self._hear(peer)
                    self._tell(peer, timing.now())
            else:
                self._ask()
        self.barrier()
        self.link = self._link
        self._running = timing.RunningClock(self.now)

    def _ask(self) -> None:
        found = []
        for _ in range(_ROUNDS):
            asked = timing.now()
            self._tell(0, None)
            theirs = self._hear(0)
            error = (timing.now() - asked) / 2
            found.append(Alignment(self.alignment.host, theirs - (asked + error), error))
        self.alignment = min(found, key=attrgetter("error"))

    def _tell(self, peer: int, value: Any) -> None:
        """Send something that is not counted as a message."""
        self._send(value, peer, _CLOCK, sent=self.now())

    def _hear(self, peer: int) -> Any:
        message = self._receive(peer, _CLOCK)
        assert message is not None  # as there is no limit of its own
        return pickle.loads(message.object) if message.object else None

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See Transport: here the vector is this rank's own; slices of it travel as copies."""
        vector = torch.zeros(numel, dtype=dtype, device=self.device)
        self._allocated[vector.untyped_storage().data_ptr()] = vector
        return vector

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """Raise RuntimeError: there is no shared memory here."""
        raise RuntimeError(
            f"shared vector {name!r}: there is no shared memory between machines; "
            "use the shared_memory transport (start train.py by itself)"
        )

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close; after an error of this rank's own, the waits of its peers end."""
        if error is not None:  # the others are not waited for: they may be waiting for this rank
            self.timeout = min(self.timeout, _PARTING_S)
            if not isinstance(error, PeerLost):  # the others notice it too
                self._farewell = Kind.FAILED
        super().__exit__(kind, error, traceback)

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        payload: torch.Tensor | bytes
        if isinstance(value, torch.Tensor):
            payload = self._payload_of(value)
            kind, dtype, numel, nbytes = Kind.TENSOR, value.dtype, value.numel(), value.nbytes
        else:
            payload = b"" if value is None else pickle.dumps(value)
            kind, dtype, numel, nbytes = Kind.OBJECT, torch.uint8, len(payload), len(payload)
        leaves = self.link.leaves(nbytes, sent) if self.link else 0.0
        left = leaves + self.link.seconds(nbytes) if self.link else 0.0
        return self._post(dst, Header(kind, tag, dtype, numel, n, sent, leaves), payload, left), nbytes

    def _payload_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements in one piece, as they may lie until they are sent, on the CPU if not by `_from_gpu`.

        A slice of an allocated vector stays unchanged until the Work is done; anything else may not, and is copied.
        """
        to_cpu = self._on_gpu and not self._from_gpu
        memory = tensor.untyped_storage().data_ptr()
        if tensor.is_contiguous() and memory in self._allocated and not to_cpu:
            return tensor
        payload = as_vector(tensor).cpu() if to_cpu else as_vector(tensor)
        return payload.clone() if payload.untyped_storage().data_ptr() == memory else payload

    @abstractmethod
    def _post(self, dst: int, header: Header, payload: torch.Tensor | bytes = b"", left: float = 0.0) -> Work:
        """Send header and payload; `left`: when their last byte will have left this rank's card."""

    def _hold(self, src: int, header: Header) -> Held | None:
        """Let a message pass the card of this rank, which has a link, while it really comes."""
        assert self.link
        return None if header.kind in WHY else self.link.hold(src, header.nbytes, header.leaves, None)

    def _put(self, message: Message, header: Header, held: Held | None) -> None:
        """Take in a message that is here, as soon as it is `held` back no longer."""
        if held:
            held.happen = partial(self.inbox.put, message, header.sent)
        else:
            self.inbox.put(message, header.sent)


@dataclass(slots=True, eq=False, repr=False)
class Sending(Pending):
    """Done when this rank's memory is needed no more, and not before the time at which it has `_left` the card."""

    _left: float

    @abstractmethod
    def has_gone(self) -> bool:
        """Whether this rank's memory is needed no more."""

    def _is_done(self) -> bool:
        transport = self._transport
        if transport._closed or self._dst in transport.inbox.gone or transport.inbox.over:
            return True
        return self.has_gone() and (not self._left or transport.now() >= self._left)


class Buffers:
    """Vectors that are free for reuse: touching fresh pages takes longer than copying into old ones."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._kept = 0
        self._lock = threading.Lock()  # one thread may take what another gives back

    def take(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a vector [numel], whatever is in it."""
        with self._lock:
            if free := self._free.get((numel, dtype)):
                self._kept -= 1
                return free.pop()
        return torch.empty(numel, dtype=dtype)

    def give_back(self, vector: torch.Tensor) -> None:
        """Make a vector free for reuse. Where lengths do not recur, all are dropped now and then."""
        with self._lock:
            if self._kept == _KEPT:
                self._free.clear()
                self._kept = 0
            self._free.setdefault((vector.numel(), vector.dtype), []).append(vector)
            self._kept += 1


def _clock_of_this_process() -> tuple[str, str]:
    """Return what two processes have in common that read the same clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/time")
    except OSError:  # not Linux
        return platform.node(), ""
