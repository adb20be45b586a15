"""Ranks of one machine that read each other's memory: torch.multiprocessing and pipes, nothing else.

Vectors live in shared memory and are handed out once, at `allocate`, through the queues between the ranks. After that
a message is a descriptor of some 60 bytes: "look at elements a to b of your view of my buffer 3". No payload moves
until the receiver reads it, in place.

A queue here is one pipe per (source, destination): one writer, one reader, so no lock, and a rank that is killed
can stop nobody else. What is not a slice of an allocated vector travels in the pipe itself. `isend` never blocks: what
a full pipe does not take leaves during this rank's next calls. The launcher tells deaths on one more pipe per rank.
"""

import math
import os
import pickle
import select
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from records.events import Recorder, clock
from transports.base import ANY, OutOfSharedMemory, PeerLost, PeerReturned, Transport, Work, as_vector
from transports.pipes import (
    DESCRIPTOR,
    GOODBYE,
    HEADER,
    OBJECT,
    RELEASE,
    RETURNED,
    VECTOR,
    Endpoint,
    descriptor_frame,
    frame,
    release_frame,
    to_vector,
    vector_frame,
)

_READ_AT_MOST = 1 << 20
_BUFFER = "(buffer "  # the number follows: the tag of a vector that is handed out


class SharedMemory(Transport):
    """The shared-memory engine of `Transport`."""

    def __init__(self, endpoint: Endpoint, device: torch.device, timeout: float, recorder: Recorder | None) -> None:
        super().__init__(endpoint.rank, endpoint.world_size, device, timeout, recorder)
        self._endpoint = endpoint
        self._out = {peer: connection.fileno() for peer, connection in endpoint.outbound.items()}
        self._source = {connection.fileno(): peer for peer, connection in endpoint.inbound.items()}
        self._deaths = endpoint.deaths.fileno()
        self._own: list[torch.Tensor] = []  # allocated vectors, by number
        self._own_number: dict[int, int] = {}  # the address of a vector's memory -> its number
        self._theirs: dict[int, list[torch.Tensor]] = {peer: [] for peer in self.peers}
        self._shared: dict[str, torch.Tensor] = {}
        self._returning: dict[int, tuple[Connection, Connection]] = {}  # pipes to ranks that ask to be let in
        self.rejoined = endpoint.life > 0
        self._one_by_one = set(endpoint.inbound) if self.rejoined else set()  # not in `allocate` together with them
        self._partial = {peer: bytearray() for peer in self.peers}  # read, but not yet a whole frame
        self._backlog: dict[int, deque[memoryview]] = {peer: deque() for peer in self.peers}
        self._unreleased: dict[int, set[int]] = {peer: set() for peer in self.peers}
        self._tickets = endpoint.life << 32  # unlike those of an earlier life, which may be released yet
        self._pollers: dict[int, select.poll] = {}
        for fd in (*self._out.values(), *self._source, self._deaths):
            os.set_blocking(fd, False)
        for peer in (*self.peers, ANY):
            self._pollers[peer] = select.poll()
            self._pollers[peer].register(self._deaths, select.POLLIN)
        for fd, peer in self._source.items():
            self._pollers[peer].register(fd, select.POLLIN)
            self._pollers[ANY].register(fd, select.POLLIN)
        for peer in self.peers:
            if peer not in endpoint.inbound:
                self._lose(peer, f"rank {self.rank} was started again, and talks to others only", died=False)

    # Memory

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See Transport: the vector is in shared memory, every peer holds a view of it."""
        vector = self._new_vector(numel, dtype)
        self._own_number[vector.untyped_storage().data_ptr()] = len(self._own)
        self._own.append(vector)
        tag = f"{_BUFFER}{len(self._own)})"
        for peer in self._endpoint.outbound:
            self._hand_out(vector, peer, tag)
        if self.rejoined:
            return vector  # the others are not in `allocate` now: see _take_buffer
        for peer in self.peers:
            self._theirs[peer].append(self._received_buffer(peer, tag))
        self.barrier()  # nobody may leave before its buffers are in the others' hands
        return vector

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """See Transport: the lowest of `ranks` makes the vector and hands it to the others."""
        members = sorted(set(ranks))
        if self.rank not in members:
            raise ValueError(f"shared vector {name!r}: rank {self.rank} is not one of {members}")
        tag, done = f"(shared {name})", f"(have shared {name})"
        if self.rank != members[0]:
            vector = self._received_buffer(members[0], tag)
            self._send(None, members[0], done)
        else:
            vector = self._new_vector(numel, dtype)
            for peer in members[1:]:
                self._hand_out(vector, peer, tag)
            for peer in members[1:]:
                self._receive(peer, done)
        self._shared[tag] = vector
        return vector

    def admit(self, peer: int) -> None:
        """See Transport: from here on its pipes are the new ones, and it gets what was allocated so far."""
        old = (self._endpoint.inbound[peer], self._endpoint.outbound[peer])
        if peer not in self._gone:
            self._pipe_ended(peer, "it died")
        inbound, outbound = self._returning.pop(peer)
        self._news = deque(news for news in self._news if news.rank != peer)
        for key in [key for key in self._inbox if key[0] == peer]:
            del self._inbox[key]
        del self._source[old[0].fileno()], self._gone[peer]
        for connection in old:
            connection.close()
        self._endpoint.inbound[peer], self._endpoint.outbound[peer] = inbound, outbound
        self._source[inbound.fileno()], self._out[peer] = peer, outbound.fileno()
        for fd in (inbound.fileno(), outbound.fileno()):
            os.set_blocking(fd, False)
        self._pollers[peer].register(inbound.fileno(), select.POLLIN)
        self._pollers[ANY].register(inbound.fileno(), select.POLLIN)
        self._partial[peer].clear()
        self._theirs[peer].clear()
        self._one_by_one.add(peer)
        for i, vector in enumerate(self._own, 1):
            self._hand_out(vector, peer, f"{_BUFFER}{i})")
        for tag, vector in self._shared.items():
            self._hand_out(vector, peer, tag)

    def may_return(self) -> bool:
        """See Transport."""
        return bool(self._endpoint.spares or self._returning)

    def _new_vector(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        vector = torch.zeros(numel, dtype=dtype, device=self.device)
        self._synchronize()
        try:
            return vector if vector.is_cuda else vector.share_memory_()
        except RuntimeError as error:
            raise OutOfSharedMemory(
                f"no shared memory left for {vector.nbytes / 1e6:.0f} MB (see df /dev/shm; in Docker, --shm-size 2g): "
                f"{' '.join(str(error).split())[:200]}"
            ) from error

    def _hand_out(self, vector: torch.Tensor, peer: int, tag: str) -> None:
        # torch's reductions pickle a handle of the memory (a file descriptor, or CUDA IPC), not its content
        self._write(peer, frame(OBJECT, tag, bytes(ForkingPickler.dumps(vector))))

    def _received_buffer(self, peer: int, tag: str) -> torch.Tensor:
        message = self._receive(peer, tag)
        assert message is not None
        try:
            return pickle.loads(message.object)
        except (OSError, EOFError) as error:
            raise PeerLost(peer, "it died while it handed out a buffer") from error

    # Sending

    def _send(self, value: Any, dst: int, tag: str) -> tuple[Work, int]:
        if not isinstance(value, torch.Tensor):
            # Not torch's ForkingPickler, which would share the memory of tensors in the object, not copy them.
            payload = pickle.dumps(value)
            self._write(dst, frame(OBJECT, tag, payload))
            return _Copied(), len(payload)
        nbytes = value.numel() * value.element_size()
        number = self._own_number.get(value.untyped_storage().data_ptr()) if nbytes else None
        if number is None or not value.is_contiguous() or value.dtype != self._own[number].dtype:
            self._write(dst, vector_frame(tag, as_vector(value)))
            return _Copied(), nbytes
        self._synchronize()
        self._tickets += 1
        self._unreleased[dst].add(self._tickets)
        self._write(dst, descriptor_frame(tag, self._tickets, number, int(value.storage_offset()), value.numel()))
        return _InPlace(self, dst, self._tickets), nbytes

    def _give_back(self, src: int, ticket: int) -> None:
        if src not in self._gone and not self._closed:
            self._write(src, release_frame(ticket))

    def _write(self, dst: int, data: bytes) -> None:
        backlog = self._backlog[dst]
        if backlog:
            backlog.append(memoryview(data))
            self._flush(dst)
            return
        try:
            written = os.write(self._out[dst], data)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            # The reader is gone; why it is gone its own pipe tells, after what it still had to say.
            return
        if written < len(data):
            backlog.append(memoryview(data)[written:])

    def _flush(self, dst: int) -> None:
        backlog = self._backlog[dst]
        try:
            while backlog:
                written = os.write(self._out[dst], backlog[0])
                if written < len(backlog[0]):
                    backlog[0] = backlog[0][written:]
                    return
                backlog.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            backlog.clear()

    # Receiving

    def _progress(self, src: int, seconds: float) -> None:
        poller = self._pollers[src]
        waiting = [peer for peer in self.peers if self._backlog[peer]]
        for peer in waiting:
            poller.register(self._out[peer], select.POLLOUT)
        ready = poller.poll(math.ceil(seconds * 1000))
        for peer in waiting:
            poller.unregister(self._out[peer])
            self._flush(peer)
        for fd, _ in ready:
            if fd in self._source:
                self._read(self._source[fd], fd)
            elif fd == self._deaths:
                self._read_deaths()

    def _read(self, src: int, fd: int) -> bool:
        """Take in what is in the pipe of `src`; return whether there was anything."""
        try:
            data = os.read(fd, _READ_AT_MOST)
        except BlockingIOError:
            return False
        if not data:
            self._pipe_ended(src, "it died")
            return False
        partial = self._partial[src]
        if partial:
            partial += data
            taken = self._take_in(src, partial)
            del partial[:taken]
        else:
            taken = self._take_in(src, data)
            partial += data[taken:]
        return True

    def _take_in(self, src: int, data: bytes | bytearray) -> int:
        """Take in the whole frames at the beginning of `data`; return how many bytes they are."""
        start, end = 0, len(data)
        while end - start >= HEADER.size:
            size, kind, dtype, tag_size, ticket, buffer, offset, numel = HEADER.unpack_from(data, start)
            if end - start < size:
                break
            body = start + HEADER.size + tag_size
            tag = data[start + HEADER.size : body].decode()
            start += size
            if kind == RELEASE:
                self._unreleased[src].discard(ticket)
            elif kind == DESCRIPTOR and buffer < len(self._theirs[src]):  # not if it died before it was handed over
                vector = self._theirs[src][buffer][offset : offset + numel]
                self._arrive(src, tag, vector, None, numel * vector.element_size(), ticket)
            elif kind == VECTOR:
                vector = to_vector(data[body:start], dtype)
                self._arrive(src, tag, vector.to(self.device), None, start - body)
            elif kind == OBJECT:
                # Unpickled by whoever receives it: it may fail, and a handle of memory needs its sender alive.
                self._arrive(src, tag, None, bytes(data[body:start]), start - body)
                if src in self._one_by_one and tag.startswith(_BUFFER):
                    self._take_buffer(src, tag)
            else:
                self._pipe_ended(src, "it has closed its transport")
        return start

    def _take_buffer(self, src: int, tag: str) -> None:
        """Have what `src` allocates, where one of the two ranks was started again."""
        try:
            self._theirs[src].append(self._received_buffer(src, tag))
        except PeerLost:
            self._pipe_ended(src, "it died")

    def _read_deaths(self) -> None:
        """Take in the launcher's notices, one byte each: the rank that died, or, plus RETURNED, was started again."""
        try:
            dead = os.read(self._deaths, 4096)
        except BlockingIOError:
            return
        if not dead:
            raise PeerLost(ANY, "the launcher is gone")
        for code in dead:
            peer = code % RETURNED
            if code >= RETURNED:
                self._returning[peer] = self._endpoint.spares.pop(0)
                self._news.append(PeerReturned(peer))
                continue
            fd = self._endpoint.inbound[peer].fileno() if peer in self._endpoint.inbound else None
            while fd is not None and peer not in self._gone and self._read(peer, fd):
                pass  # what it sent before it died comes first
            self._pipe_ended(peer, "it died")

    def _pipe_ended(self, peer: int, why: str) -> None:
        if peer not in self._gone and peer != self.rank:
            self._lose(peer, why, died=why == "it died")
            self._unreleased[peer].clear()
            self._backlog[peer].clear()
            fd = self._endpoint.inbound[peer].fileno()
            self._pollers[peer].unregister(fd)
            self._pollers[ANY].unregister(fd)

    def close(self) -> None:
        """See Transport. Waits, within `timeout`, until the pipes have taken what was sent."""
        if self._closed:
            return
        deadline = clock() + self.timeout
        for peer in self.peers:
            if peer not in self._gone:
                self._write(peer, frame(GOODBYE))
        while any(self._backlog.values()) and clock() < deadline:
            self._progress(ANY, max(0.0, deadline - clock()))
        self._closed = True
        for tickets in self._unreleased.values():
            tickets.clear()
        self._endpoint.close()


class _Copied(Work):
    """Nothing of the sender's is read any more."""

    @property
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


class _InPlace(Work):
    """The receiver reads the sender's memory until it releases the message."""

    def __init__(self, transport: SharedMemory, dst: int, ticket: int) -> None:
        self._transport, self._dst, self._ticket = transport, dst, ticket

    @property
    def done(self) -> bool:
        transport, dst = self._transport, self._dst
        if self._ticket in transport._unreleased[dst]:
            transport._progress(dst, 0)
        return self._ticket not in transport._unreleased[dst]

    def wait(self) -> None:
        transport, dst = self._transport, self._dst
        if self._ticket not in transport._unreleased[dst]:
            return
        t0 = clock()
        while self._ticket in transport._unreleased[dst]:
            remaining = t0 + transport.timeout - clock()
            if remaining <= 0:
                raise transport._overdue("the release of a message", dst, transport.timeout)
            transport._progress(dst, remaining)
        transport.recorder.add("wait", t0, clock(), peer=dst, tag="release")
