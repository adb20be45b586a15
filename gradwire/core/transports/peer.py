"""One peer as a rank with shared memory sees it: the pipes from and to it, and which memory of each the other uses."""

import math
import os
import pickle
import select
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch

from gradwire.core.transports.base import CLOSED
from gradwire.core.transports.encoding import DTYPES, FLOAT, number_of
from gradwire.core.transports.frames import (
    BUFFER,
    DESCRIPTOR,
    FREED,
    GOODBYE,
    HEADER,
    HEADER_BYTES,
    MAPPED,
    OBJECT,
    RELEASE,
    SHARED,
    STAGED,
    VECTOR,
    descriptor,
    frame,
)  # fmt: skip
from gradwire.core.transports.messages import Message, OutOfSharedMemory, Pending
from gradwire.core.transports.staging_buffer import SLOTS, STAGE_BYTES, Stage, slot_at

if TYPE_CHECKING:
    from gradwire.core.transports.shared_memory import SharedMemory

_OFTEN = 8  # messages after which a peer gets a stage
DIED = "it died"
_READ_AT_MOST = 1 << 20
_SLICES = 1000  # that are kept for a peer


class Peer:
    """The two pipes of one life of a peer. If it is started again, its next life is another Peer.

    `open` until it has died or closed; nothing is written to it afterwards. `poller` watches the pipe from it and
    the launcher's notices.
    """

    def __init__(self, transport: "SharedMemory", rank: int, inbound: Connection, outbound: Connection) -> None:
        self._transport = transport
        self.rank = rank
        self.open = True
        self.source, self.sink = inbound.fileno(), outbound.fileno()
        self.poller = select.poll()
        self.poller.register(transport.deaths, select.POLLIN)
        self.poller.register(self.source, select.POLLIN)
        for fd in (self.source, self.sink):
            os.set_blocking(fd, False)
        self._partial = bytearray()  # read, but not yet a whole frame
        self.backlog: deque[memoryview] = deque()  # bytes that the pipe has not taken yet
        self.handed: set[int] = set()  # the numbers of this rank's buffers that were handed to it
        self.tickets = 0  # of the messages that it was to read in this rank's memory
        self.unreleased: set[int] = set()  # those of them that it may still read
        self.unmapped = 0  # handles of this rank's memory that it has not unpickled yet, for which this rank must live
        self.buffers: dict[int, torch.Tensor] = {}  # its memory, by its numbers
        self._slices: dict[tuple[int, int, int], torch.Tensor] = {}  # of its memory, since the same ones come each step
        self._stage: Stage | None = None  # for short messages to it
        self._stage_from: float = _OFTEN  # messages that it was to read in place
        self._freed = 0  # slots of the peer's stage that are free again, not yet reported to it
        self._connections = (inbound, outbound)

    def hand_over(self, kind: int, vector: torch.Tensor, tag: str = "", number: int = 0) -> None:
        """Hand this rank's buffer with this number to the peer, or the shared vector `tag`: BUFFER or SHARED."""
        self.unmapped += 1
        self.write(frame(kind, tag, self._transport.handle(vector), buffer=number))

    def send_copy(self, value: torch.Tensor, tag: str, n: float, sent: float, leaves: float) -> bool:
        """Send a copy of a short vector in the stage; return whether that was possible."""
        if self.tickets >= self._stage_from:
            self._stage_from = math.inf
            with suppress(OutOfSharedMemory):  # it only saves time
                self._stage = Stage(next(self._transport.numbers), self._transport.new_memory(STAGE_BYTES))
                self.hand_over(BUFFER, self._stage.memory, number=self._stage.number)
        # A stage that is not taken yet would be lost with this rank.
        if self._stage is None or self.unmapped or (offset := self._stage.copy(value)) < 0:
            return False
        freed, self._freed = self._freed, 0
        self.write(descriptor(STAGED, tag, freed, self._stage.number, offset, value.numel(), n, sent, leaves))
        return True

    def free(self, slot: int) -> None:
        """Tell the peer, now or later, that this slot of its stage is no longer read."""
        self._freed |= slot
        if self._freed.bit_count() > SLOTS // 2:
            self.write(frame(FREED, ticket=self._freed))
            self._freed = 0

    def _take_back(self, slots: int) -> None:
        if self._stage is not None:
            self._stage.free |= slots

    def release(self, ticket: int) -> None:
        """Tell the peer that its message with this ticket is no longer read."""
        self.write(HEADER.pack(HEADER_BYTES, RELEASE, 0, 0, ticket, 0, 0, 0, 0, 0.0, 0.0))

    def slice_of(self, buffer: int, offset: int, numel: int) -> torch.Tensor:
        """Return `numel` elements from `offset` of the peer's memory with this number."""
        key = (buffer, offset, numel)
        found = self._slices.get(key)
        if found is None:
            if len(self._slices) >= _SLICES:
                self._slices.clear()
            found = self._slices[key] = self.buffers[buffer][offset : offset + numel]
        return found

    def forget(self, buffer: int) -> None:
        """Unmap the peer's memory with this number, which it has freed."""
        del self.buffers[buffer]
        self._slices = {key: part for key, part in self._slices.items() if key[0] != buffer}

    def write(self, data: bytes) -> None:
        """Send a frame; bytes that the pipe does not take at once wait for `flush`."""
        if not self.open:
            return
        if self.backlog:
            self.backlog.append(memoryview(data))
            self.flush()
            return
        try:
            written = os.write(self.sink, data)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            # The reader is gone; its own pipe gives the reason, after its last messages.
            return
        if written < len(data):
            self.backlog.append(memoryview(data)[written:])

    def flush(self) -> None:
        """Write as much of the backlog as the pipe takes."""
        backlog = self.backlog
        try:
            while backlog:
                written = os.write(self.sink, backlog[0])
                if written < len(backlog[0]):
                    backlog[0] = backlog[0][written:]
                    return
                backlog.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            backlog.clear()

    def read_frames(self) -> bool:
        """Read and parse the frames in the pipe; return whether there were any."""
        try:
            data = os.read(self.source, _READ_AT_MOST)
        except BlockingIOError:
            return False
        if not data:
            self._transport.ended(self, DIED)
            return False
        if self._partial:
            self._partial += data
            taken = self._parse_frames(self._partial)
            del self._partial[:taken]
        else:
            taken = self._parse_frames(data)
            self._partial += data[taken:]
        return True

    def _parse_frames(self, data: bytes | bytearray) -> int:
        """Take in the whole frames at the beginning of `data`; return how many bytes they are."""
        start, end = 0, len(data)
        while end - start >= HEADER_BYTES:
            header = HEADER.unpack_from(data, start)
            size, kind, dtype, tag_size, ticket, buffer, offset, numel, n, sent, leaves = header
            if end - start < size:
                break
            if kind == RELEASE:
                self.unreleased.discard(ticket)
                start += size
                continue
            if dtype & FLOAT:
                dtype, n = dtype ^ FLOAT, number_of(n)
            body = start + HEADER_BYTES + tag_size
            tag = data[start + HEADER_BYTES : body].decode()
            start += size
            if kind in (STAGED, DESCRIPTOR):
                if buffer not in self.buffers:  # its handle came too late
                    self._transport.ended(self, DIED)
                    return end
                vector = self.slice_of(buffer, offset, numel)
                nbytes = vector.nbytes
                if kind == STAGED:
                    self._take_back(ticket)
                    give_back = partial(self.free, slot_at(offset))
                else:
                    give_back = partial(self.release, ticket)
                self._transport.arrive(Message(self.rank, tag, vector, None, nbytes, n, give_back), sent, leaves)
            elif kind == VECTOR:
                raw, element = bytearray(data[body:start]), DTYPES[dtype]
                vector = torch.frombuffer(raw, dtype=element) if raw else torch.empty(0, dtype=element)
                vector = vector.to(self._transport.device)
                self._transport.arrive(Message(self.rank, tag, vector, None, start - body, n), sent, leaves)
            elif kind == OBJECT:
                # The receiver unpickles it, which may fail.
                payload = bytes(data[body:start])
                self._transport.arrive(Message(self.rank, tag, None, payload, start - body, n), sent, leaves)
            elif kind in (BUFFER, SHARED):
                try:
                    vector = pickle.loads(data[body:start])
                except (OSError, EOFError):  # a handle needs its sender alive
                    if kind == BUFFER:
                        continue  # what follows may be in other memory
                    self._transport.ended(self, DIED)
                    return end
                self.write(frame(MAPPED))
                if kind == BUFFER:
                    self.buffers[buffer] = vector
                else:
                    self._transport.arrive(Message(self.rank, tag, vector, None, 0), 0.0, 0.0)
            elif kind == FREED:
                self._take_back(ticket)
            elif kind == MAPPED:
                self.unmapped -= 1
            elif kind == GOODBYE:
                self._transport.ended(self, CLOSED)
        return start

    def lose(self, died: bool) -> None:
        """Expect nothing more of the peer. A peer that has closed may still read earlier messages."""
        if self.open:
            self.poller.unregister(self.source)
        self.open = False
        self.unreleased.clear()
        if died:
            self.backlog.clear()

    def close(self) -> None:
        """Give the pipes back."""
        self.lose(died=True)
        for connection in self._connections:
            connection.close()


@dataclass(slots=True, eq=False, repr=False)
class InPlace(Pending):
    """A message that a peer reads in the sender's memory until it releases it."""

    _peer: Peer
    _ticket: int

    def _is_done(self) -> bool:
        return self._ticket not in self._peer.unreleased

    def _look(self, seconds: float) -> None:
        self._transport._progress(self._dst, seconds)
