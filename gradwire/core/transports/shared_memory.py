"""Ranks of one machine that read each other's memory: torch.multiprocessing and pipes, nothing else.

Vectors live in shared memory. The first message to a peer that carries a slice of one hands out the vector: a handle
of its memory goes into the pipe in front of it. Apart from that a message is a descriptor of some 60 bytes: "look at
elements a to b of your view of my buffer 3". No payload moves until the receiver reads it, in place. To a peer
that often gets messages, short vectors are copied first: see `staging_buffer.py`.

There is one pipe per (source, destination): one writer, one reader, so no lock, and a rank that is killed
cannot stop the others. Values that are no slice of an allocated vector travel in the pipe itself. `isend` never
blocks: bytes that do not fit into a full pipe are written during this rank's next calls. The launcher reports deaths on
one more pipe per rank.
"""

import itertools
import math
import os
import pickle
import select
from collections.abc import Iterable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from typing_extensions import override

from gradwire.core.transports import timing
from gradwire.core.transports.base import NO_LIMIT, Transport
from gradwire.core.transports.frames import BUFFER, DESCRIPTOR, GOODBYE, OBJECT, SHARED, descriptor, frame, vector_frame
from gradwire.core.transports.inbox import ANY
from gradwire.core.transports.memory import empty, new_shared, share
from gradwire.core.transports.messages import Delivered, Message, PeerLost, PeerReturned, Setup, Work, as_vector
from gradwire.core.transports.peer import DIED, InPlace, Peer
from gradwire.core.transports.pipes import RETURNED, Endpoint
from gradwire.core.transports.staging_buffer import fits

_SPIN_S = 1e-4  # seconds: several times as long as waking a process
_DELIVERED = Delivered()
_COPIED = 0, None  # in place of the number and the vector of an allocation
_REST = 20  # times as long as the core was away, this rank does not offer it again
_BRIEF_S = 2e-4  # seconds: a shorter sleep was hardly worth it
_POLL_S = 1e-3  # seconds, in which poll() counts


class SharedMemory(Transport):
    """`Transport` between processes that a launcher has given the ends of their pipes."""

    now = staticmethod(timing.now)  # called several times a message

    def __init__(self, endpoint: Endpoint, setup: Setup) -> None:
        super().__init__(endpoint.rank, endpoint.world_size, *setup)
        self.rejoined = endpoint.life > 0
        self._endpoint = endpoint
        self.numbers = itertools.count()  # of allocations: `_allocated` has these beside the vectors
        self._shared: dict[str, torch.Tensor] = {}  # shared vectors, by tag
        self._waited_briefly = True
        self._sleeps_until = 0.0 if hasattr(os, "sched_yield") else math.inf  # without looking again before
        self.deaths = endpoint.deaths.fileno()  # on which the launcher reports deaths
        os.set_blocking(self.deaths, False)
        self._returning: dict[int, tuple[Connection, Connection]] = {}  # pipes to ranks that ask to be let in
        self._anybody = select.poll()
        self._anybody.register(self.deaths, select.POLLIN)
        self._peers: dict[int, Peer] = {}
        self._sources: dict[int, Peer] = {}  # by the file descriptor of the pipe from it
        for peer in self.peers:
            if peer in endpoint.inbound:
                self._meet(peer)
            else:
                self._lose(peer, f"rank {self.rank} was started again, and talks to others only", died=False)

    # Memory

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See Transport: the vector is in shared memory, and lives as long as the transport, unless freed."""
        vector = self._new_vector(numel, dtype)
        self._allocated[vector.untyped_storage().data_ptr()] = (next(self.numbers), vector)
        return vector

    def free(self, vector: torch.Tensor) -> None:
        """See Transport: peers may have mapped the memory, so it is not only unmapped, but emptied."""
        super().free(vector)
        empty(vector)

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
                    self._peers[peer].hand_over(SHARED, vector, tag)
        self._shared[tag] = vector
        return vector

    def _new_vector(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        vector = torch.zeros(numel, dtype=dtype, device=self.device)
        self._synchronize()
        return share(vector)

    def new_memory(self, nbytes: int) -> torch.Tensor:
        """Return float32 elements that peers may map. Raises OutOfSharedMemory."""
        return new_shared(nbytes)

    def handle(self, vector: torch.Tensor) -> bytes:
        """Return a pickled handle of the vector's memory (a file descriptor, or CUDA IPC), not its content."""
        return bytes(ForkingPickler.dumps(vector))

    # Sending

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        peer = self._peers[dst]
        if not isinstance(value, torch.Tensor):
            # Not torch's ForkingPickler, which would share the memory of tensors in the object, not copy them.
            payload = b"" if value is None else pickle.dumps(value)
            leaves = self.link.leaves(len(payload), sent) if self.link else 0.0
            peer.write(frame(OBJECT, tag, payload, n=n, sent=sent, leaves=leaves))
            return _DELIVERED, len(payload)
        nbytes = value.nbytes
        leaves = self.link.leaves(nbytes, sent) if self.link else 0.0
        number, buffer = self._allocated.get(value.untyped_storage().data_ptr(), _COPIED) if nbytes else _COPIED
        if buffer is None or not value.is_contiguous() or value.dtype != buffer.dtype:
            peer.write(vector_frame(tag, as_vector(value), n, sent, leaves))
            return _DELIVERED, nbytes
        if fits(value, nbytes) and peer.send_copy(value, tag, n, sent, leaves):
            return _DELIVERED, nbytes
        self._synchronize()
        ticket = peer.tickets = peer.tickets + 1
        data = descriptor(DESCRIPTOR, tag, ticket, number, int(value.storage_offset()), value.numel(), n, sent, leaves)
        if number not in peer.handed:
            peer.handed.add(number)
            peer.hand_over(BUFFER, buffer, number=number)
        if peer.open:  # else it is dead, and its last messages are still held back
            peer.unreleased.add(ticket)
        peer.write(data)
        return InPlace(self, dst, peer, ticket), nbytes

    # Receiving

    def _progress(self, src: int, seconds: float) -> None:
        if self.link is None:
            self._move(src, seconds)
            return
        moved = self._move(ANY, 0)  # messages from others pass the same card
        at = timing.now()
        if self.link.happen(at) or moved or not seconds:
            return
        seconds = min(seconds, self.link.due(at))
        if seconds < _POLL_S:
            timing.sleep(seconds)
        else:
            self._move(ANY, (seconds // _POLL_S - 0.5) * _POLL_S)  # the poll rounds up, to no more than this
        self.link.happen(timing.now())

    def _move(self, src: int, seconds: float) -> bool:
        """Read messages from `src` (or ANY); wait at most `seconds` for one. Return whether any came."""
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
                self._sources[fd].read_frames()
            elif fd == self.deaths:
                self._read_deaths()
        return bool(ready)

    def _look(self, src: int) -> bool:
        peer = self._peers.get(src)
        if peer is None or self.link:
            return super()._look(src)
        return peer.open and peer.read_frames()

    def _look_at(self, peer: Peer, seconds: float) -> bool:
        """Read the frames of `peer`; poll for a moment before sleeping, since waking up takes long.

        Between two polls other ranks may have the core. If one computes on it, this rank gets the core late: then it
        sleeps for some time instead of polling. After a long wait it expects another and polls only once.
        """
        if peer.read_frames():
            return True
        if self._waited_briefly and seconds and (at := timing.now()) >= self._sleeps_until:
            end = at + min(seconds, _SPIN_S)
            while peer.open and at < end:
                os.sched_yield()  # the peer may need this core
                if peer.read_frames():
                    return True
                before, at = at, timing.now()
                if at - before > _BRIEF_S:
                    self._sleeps_until = at + _REST * (at - before)
        return not peer.open

    def arrive(self, message: Message, sent: float, leaves: float) -> None:
        """Take in a message. Where there is a link, hold it back: it `leaves` its sender's card at that time."""
        if self.link:
            self.link.hold(message.src, message.nbytes, leaves, partial(self.inbox.put, message, sent))
        else:
            self.inbox.put(message, sent)

    # Peers come and go

    def _meet(self, rank: int) -> None:
        """Begin to talk to a peer."""
        peer = Peer(self, rank, self._endpoint.inbound[rank], self._endpoint.outbound[rank])
        self._peers[rank] = self._sources[peer.source] = peer
        self._anybody.register(peer.source, select.POLLIN)

    def admit(self, peer: int) -> None:
        """See Transport: from here on its pipes are the new ones."""
        old = self._peers[peer]
        self.ended(old, DIED)
        if self.link:
            self.link.forget(peer)
        del self._sources[old.source]
        old.close()
        self.inbox.forget(peer)
        self._endpoint.inbound[peer], self._endpoint.outbound[peer] = self._returning.pop(peer)
        self._meet(peer)
        for tag, vector in self._shared.items():
            self._peers[peer].hand_over(SHARED, vector, tag)

    @override
    def may_return(self) -> bool:
        return bool(self._endpoint.spares or self._returning)

    def _read_deaths(self) -> None:
        """Take in the launcher's notices, one byte each: the rank that died, or, plus RETURNED, was started again."""
        try:
            dead = os.read(self.deaths, 4096)
        except BlockingIOError:
            return
        if not dead:
            raise PeerLost(ANY, "the launcher is gone")
        for code in dead:
            peer = code % RETURNED
            if code >= RETURNED:
                self._returning[peer] = self._endpoint.spares.pop(0)
                self._after_its_messages(peer, partial(self.inbox.news.append, PeerReturned(peer)))
            elif peer in self._peers:
                while self._peers[peer].open and self._peers[peer].read_frames():
                    pass  # messages that it sent before it died come first
                self.ended(self._peers[peer], DIED)

    def ended(self, peer: Peer, why: str) -> None:
        """Note that a peer has died or closed."""
        if peer.open:
            self._lose(peer.rank, why, died=why == DIED)
            self._anybody.unregister(peer.source)
        peer.lose(died=why == DIED)

    def close(self) -> None:
        """Wait, within `timeout`, until the peers have read the pipes and the handles in them; then close."""
        if self._closed:
            return
        peers = self._peers.values()
        for peer in peers:
            peer.write(frame(GOODBYE))
        for seconds in self._running.slices(self.timeout):
            if not any(peer.backlog or (peer.open and peer.unmapped) for peer in peers):
                break
            self._progress(ANY, seconds)
        self._closed = True
        for peer in peers:
            peer.lose(died=True)
        self._endpoint.close()
