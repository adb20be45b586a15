"""Ranks of one machine that read each other's memory: torch.multiprocessing and pipes, nothing else.

Vectors live in shared memory. The first message to a peer that carries a slice of one hands out the vector: a handle
of its memory goes into the pipe in front of it. Apart from that a message is a descriptor of some 60 bytes: "look at
elements a to b of your view of my buffer 3". No payload moves until the receiver reads it, in place.

There is one pipe per (source, destination): one writer, one reader, so no lock, and a rank that is killed
can stop nobody else. What is not a slice of an allocated vector travels in the pipe itself. `isend` never blocks: what
a full pipe does not take leaves during this rank's next calls. The launcher reports deaths on one more pipe per rank.
"""

import math
import os
import pickle
import select
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from records.recorder import Recorder
from transports import timing
from transports.base import CLOSED, NO_LIMIT
from transports.headers import FLOAT, number_of
from transports.in_place import InPlace
from transports.inbox import ANY
from transports.link import Link
from transports.messages import Delivered, Message, OutOfSharedMemory, Work, as_vector
from transports.peer import Peer
from transports.pipes import (
    BUFFER,
    DESCRIPTOR,
    GOODBYE,
    HEADER,
    OBJECT,
    RELEASE,
    SHARED,
    TAKEN,
    VECTOR,
    Endpoint,
    descriptor_frame,
    goodbye_frame,
    object_frame,
    taken_frame,
    to_vector,
    vector_frame,
)
from transports.segments import remove_segments
from transports.timing import SLICE_S
from transports.watch import DIED, Watching

_SPIN_S = 1e-4  # seconds: some times what it takes to wake a sleeping process
_BRIEF_S = 2e-4  # seconds: a shorter sleep was hardly worth it
_POLL_S = 1e-3  # seconds, in which poll() counts


class SharedMemory(Watching):
    """`Transport` between processes that a launcher has given the ends of their pipes."""

    def __init__(
        self,
        endpoint: Endpoint,
        device: torch.device,
        timeout: float,
        recorder: Recorder | None,
        link: Link | None = None,
    ) -> None:
        super().__init__(endpoint, device, timeout, recorder, link)
        self._allocated: dict[int, tuple[int, torch.Tensor]] = {}  # number and vector, by the address of its memory
        self._shared: dict[str, torch.Tensor] = {}  # shared vectors, by tag
        # A core of its own may look without sleeping; a shared one is for those who compute.
        self._spins = hasattr(os, "sched_getaffinity") and endpoint.world_size <= len(os.sched_getaffinity(0))
        self._waited_briefly = True

    # Memory

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See Transport: the vector is in shared memory, and lives as long as the transport."""
        vector = self._new_vector(numel, dtype)
        self._allocated[vector.untyped_storage().data_ptr()] = (len(self._allocated), vector)
        return vector

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """See Transport: the lowest of `ranks` creates the vector and hands it to the others that are alive."""
        members = sorted(set(ranks))
        if self.rank not in members:
            raise ValueError(f"shared vector {name!r}: rank {self.rank} is not one of {members}")
        tag = f"(shared {name})"
        if self.rank != members[0]:
            # A rank that was started again is let in when its server likes; if the server dies, PeerLost is raised.
            message = self._receive(members[0], tag, NO_LIMIT if self.rejoined else self.timeout)
            assert message is not None
            vector = message.vector
        else:
            vector = self._new_vector(numel, dtype)
            for peer in members[1:]:
                if peer not in self.inbox.gone:
                    self._peers[peer].hand_out_shared(tag, vector)
        self._shared[tag] = vector
        return vector

    def admit(self, peer: int) -> None:
        """See Transport."""
        super().admit(peer)
        for tag, vector in self._shared.items():
            self._peers[peer].hand_out_shared(tag, vector)

    def _new_vector(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        vector = torch.zeros(numel, dtype=dtype, device=self.device)
        self._synchronize()
        try:
            return vector if vector.is_cuda else vector.share_memory_()
        except RuntimeError as error:
            remove_segments(os.getpid())
            raise OutOfSharedMemory(
                f"no shared memory left for {vector.nbytes / 1e6:.0f} MB (see df /dev/shm; in Docker, --shm-size 2g): "
                f"{' '.join(str(error).split())[:200]}"
            ) from error

    # Sending

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        peer = self._peers[dst]
        if not isinstance(value, torch.Tensor):
            # Not torch's ForkingPickler, which would share the memory of tensors in the object, not copy them.
            payload = b"" if value is None else pickle.dumps(value)
            leaves = self.link.leaves(len(payload), sent) if self.link else 0.0
            peer.write(object_frame(tag, payload, n, sent, leaves))
            return Delivered(), len(payload)
        nbytes = value.numel() * value.element_size()
        leaves = self.link.leaves(nbytes, sent) if self.link else 0.0
        number, buffer = self._allocated.get(value.untyped_storage().data_ptr(), (0, None)) if nbytes else (0, None)
        if buffer is None or not value.is_contiguous() or value.dtype != buffer.dtype:
            peer.write(vector_frame(tag, as_vector(value), n, sent, leaves))
            return Delivered(), nbytes
        self._synchronize()
        peer.tickets += 1
        ticket = peer.tickets
        data = descriptor_frame(tag, ticket, number, int(value.storage_offset()), value.numel(), n, sent, leaves)
        if number not in peer.handed:
            peer.hand_out(number, buffer)
        if peer.open:  # else it is dead, and what it sent before is still held back
            peer.unreleased.add(ticket)
        peer.write(data)
        return InPlace(self, peer, ticket), nbytes

    # Receiving

    def _progress(self, src: int, seconds: float) -> None:
        if self.link is None:
            self._move(src, seconds)
            return
        moved = self._move(ANY, 0)  # what comes from others passes the same card
        at = timing.now()
        if self.link.happen(at) or moved or not seconds:
            return
        seconds = min(seconds, self.link.due(at))
        if seconds < _POLL_S:
            timing.sleep(seconds)
        else:
            self._move(ANY, (seconds // _POLL_S - 0.5) * _POLL_S)  # is rounded up, to what is not too long
        self.link.happen(timing.now())

    def _move(self, src: int, seconds: float) -> bool:
        """Take in what has come from `src` (or ANY); wait at most `seconds` for something. Return whether it came."""
        from_one = self._peers.get(src)
        waiting = [peer for peer in self._peers.values() if peer.backlog]
        if from_one and from_one.open and not waiting and self._look_at(from_one, seconds):
            return True
        poller = from_one.poller if from_one else self._anybody
        for peer in waiting:
            poller.register(peer.sink, select.POLLOUT)
        t0 = timing.now()
        ready = poller.poll(math.ceil(seconds * 1000))
        if seconds:
            self._waited_briefly = timing.now() - t0 < _BRIEF_S
        for peer in waiting:
            poller.unregister(peer.sink)
            peer.flush()
        for fd, _ in ready:
            if fd in self._sources:
                self._read(self._sources[fd])
            elif fd == self._deaths:
                self._read_deaths()
        return bool(ready)

    def _look(self, src: int) -> bool:
        peer = self._peers.get(src)
        if peer is None or self.link:
            return super()._look(src)
        return peer.open and self._read(peer)

    def _look_at(self, peer: Peer, seconds: float) -> bool:
        """Take in what is in the pipe of `peer`; look again and again for a moment, since to be woken takes long.

        After a long wait the next is expected to be long too: then one look is enough, and the core is left to others.
        """
        if self._read(peer):
            return True
        if self._spins and self._waited_briefly and seconds:
            end = timing.now() + min(seconds, _SPIN_S)
            while peer.open and timing.now() < end:
                os.sched_yield()  # the peer may be on this core
                if self._read(peer):
                    return True
        return not peer.open

    def _read(self, peer: Peer) -> bool:
        """Take in what is in the pipe of `peer`; return whether there was anything."""
        data = peer.read()
        if data is None:
            return False
        if not data:
            self._ended(peer, DIED)
            return False
        partial_frame = peer.partial
        if partial_frame:
            partial_frame += data
            taken = self._take_in(peer, partial_frame)
            del partial_frame[:taken]
        else:
            taken = self._take_in(peer, data)
            partial_frame += data[taken:]
        return True

    def _take_in(self, peer: Peer, data: bytes | bytearray) -> int:
        """Take in the whole frames at the beginning of `data`; return how many bytes they are."""
        start, end = 0, len(data)
        while end - start >= HEADER.size:
            header = HEADER.unpack_from(data, start)
            size, kind, dtype, tag_size, ticket, buffer, offset, numel, n, sent, leaves = header
            if end - start < size:
                break
            if dtype & FLOAT:
                dtype, n = dtype ^ FLOAT, number_of(n)
            body = start + HEADER.size + tag_size
            tag = data[start + HEADER.size : body].decode()
            start += size
            if kind == RELEASE:
                peer.unreleased.discard(ticket)
            elif kind == DESCRIPTOR:
                vector = peer.slice_of(buffer, offset, numel)
                nbytes = numel * vector.element_size()
                give_back = partial(peer.release, ticket)
                self._arrive(Message(peer.rank, tag, vector, None, nbytes, n, give_back), sent, leaves)
            elif kind == VECTOR:
                vector = to_vector(data[body:start], dtype).to(self.device)
                self._arrive(Message(peer.rank, tag, vector, None, start - body, n), sent, leaves)
            elif kind == OBJECT:
                # The receiver unpickles it, which may fail.
                payload = bytes(data[body:start])
                self._arrive(Message(peer.rank, tag, None, payload, start - body, n), sent, leaves)
            elif kind in (BUFFER, SHARED):
                try:
                    vector = pickle.loads(data[body:start])
                except (OSError, EOFError):  # a handle needs its sender alive
                    self._ended(peer, DIED)
                    return end
                peer.write(taken_frame())
                if kind == BUFFER:
                    peer.buffers[buffer] = vector
                else:
                    self._arrive(Message(peer.rank, tag, vector, None, 0), 0.0, 0.0)
            elif kind == TAKEN:
                peer.untaken -= 1
            elif kind == GOODBYE:
                self._ended(peer, CLOSED)
        return start

    def _arrive(self, message: Message, sent: float, leaves: float) -> None:
        """Take in a message; where there is a link, hold it back: it `leaves` its sender's card at that time."""
        if self.link:
            self.link.hold(message.src, message.nbytes, leaves, partial(self.inbox.put, message, sent))
        else:
            self.inbox.put(message, sent)

    def close(self) -> None:
        """See Transport. Waits, within `timeout`, until the pipes and the handles in them have been taken."""
        if self._closed:
            return
        deadline = self._running() + self.timeout
        peers = self._peers.values()
        for peer in peers:
            peer.write(goodbye_frame())
        while any(peer.backlog or (peer.open and peer.untaken) for peer in peers):
            remaining = deadline - self._running()
            if remaining <= 0:
                break
            self._progress(ANY, min(remaining, SLICE_S))
        self._closed = True
        for peer in peers:
            peer.lose(died=True)
        self._endpoint.close()
