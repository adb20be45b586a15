"""The same transport over torch.distributed (gloo): ranks that share no memory, as torchrun starts them.

Every message is copied: a header of fixed size, then the payload. gloo can neither poll nor time out a wait without
closing all its connections, and a send blocks until it is received; so for every peer one thread sends what is queued
and one receives into the inbox, and the waiting, with its limit, is done there. Meant to show that a strategy
does not care what carries its messages, and to be right; it is not built for speed.

Messages from ANY are taken in the order in which they were sent, among those in the inbox, where the ranks run on one
machine. Another machine has another clock: what comes from there counts as sent when it arrives.
"""

import math
import pickle
import platform
import queue
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from records.events import Recorder
from transports.base import Message, Tags, Transport, Work, as_vector
from transports.link import Held, Link
from transports.timing import SLICE_S

_HEADER_BYTES = 256
_FOR_EVER = timedelta(days=365)  # gloo's own time-outs would close all connections
_GOODBYE = "goodbye"
_MACHINE = zlib.crc32(platform.node().encode())


def connect(
    device_of: Callable[[int], torch.device],
    timeout: float,
    recorder: Recorder | None = None,
    link: Link | None = None,
) -> "ProcessGroup":
    """Return this process's transport, as the environment of torchrun says. Raises RuntimeError if nobody answers."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    return ProcessGroup(device_of(dist.get_rank()), timeout, recorder, link)


class ProcessGroup(Transport):
    """`Transport` over torch.distributed; the default process group must be initialised, with gloo."""

    def __init__(
        self, device: torch.device, timeout: float, recorder: Recorder | None = None, link: Link | None = None
    ) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), device, timeout, recorder, link)
        self.recorder.rank = self.rank
        self._allocated: dict[int, torch.Tensor] = {}  # by the address of their memory
        self._changed = threading.Condition(threading.RLock())  # guards the inbox and who is gone
        self._outgoing: dict[int, queue.SimpleQueue[_Queued]] = {peer: queue.SimpleQueue() for peer in self.peers}
        self._senders = {
            peer: threading.Thread(target=self._send_all, args=(peer,), daemon=True) for peer in self.peers
        }
        self._receivers = [threading.Thread(target=self._receive_all, args=(peer,), daemon=True) for peer in self.peers]
        for thread in (*self._senders.values(), *self._receivers):
            thread.start()

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See Transport: here the vector is this rank's own; slices of it travel as copies."""
        vector = torch.zeros(numel, dtype=dtype, device=self.device)
        self._allocated[vector.untyped_storage().data_ptr()] = vector
        return vector

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """Raise RuntimeError: there is no shared memory here."""
        raise RuntimeError(
            f"shared vector {name!r}: the process_group transport has no shared memory; "
            "use the shared_memory transport (start train.py without torchrun)"
        )

    def close(self) -> None:
        """See Transport. Returns when all peers have closed too or are gone, at the latest after `timeout`."""
        if self._closed:
            return
        self._closed = True
        deadline = self._running() + self.timeout
        for peer in self.peers:
            self._outgoing[peer].put(_Queued(_header(_GOODBYE), None))
        for thread in (*self._senders.values(), *self._receivers):
            while thread.is_alive() and (remaining := deadline - self._running()) > 0:
                thread.join(min(remaining, SLICE_S))
        dist.destroy_process_group()

    # Sending

    def _send(self, value: Any, dst: int, tag: str, n: int = 0, sent: float = 0.0) -> tuple[Work, int]:
        if isinstance(value, torch.Tensor):
            payload = as_vector(value).cpu()
            # A slice of an allocated vector stays unchanged until the Work is done; anything else may not.
            if payload.untyped_storage().data_ptr() not in self._allocated:
                payload = payload.clone()
            dtype = payload.dtype
        else:
            payload, dtype = torch.empty(0, dtype=torch.uint8), None
            if value is not None:
                payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        nbytes = payload.numel() * payload.element_size()
        leaves = self.link.leaves(nbytes, sent) if self.link else 0.0
        queued = _Queued(_header((tag, dtype, payload.numel(), int(n), sent, leaves, _MACHINE)), payload)
        self._outgoing[dst].put(queued)
        return _Delivery(self, dst, queued.sent, leaves + self.link.seconds(nbytes) if self.link else 0.0), nbytes

    def _send_all(self, peer: int) -> None:
        while True:
            queued = self._outgoing[peer].get()
            try:
                # A peer that has closed waits for the goodbye still.
                if peer not in self._gone or queued.payload is None:
                    _complete(dist.isend(queued.header, peer, tag=0))
                    if queued.payload is not None and queued.payload.numel():
                        _complete(dist.isend(queued.payload.view(torch.uint8), peer, tag=1))
            except RuntimeError:
                pass  # The peer is gone; that the other thread tells, after what the peer still had to say.
            queued.sent.set()
            if queued.payload is None:
                return

    # Receiving

    def _receive_all(self, peer: int) -> None:
        header, held, ahead = torch.empty(_HEADER_BYTES, dtype=torch.uint8), None, math.inf
        try:
            while True:
                _complete(dist.irecv(header, peer, tag=0))
                description = pickle.loads(header.numpy().tobytes())
                if description == _GOODBYE:
                    self._ended(peer, "it has closed its transport", died=False)
                    return
                tag, dtype, numel, n, sent, leaves, machine = description
                payload = torch.empty(numel, dtype=dtype or torch.uint8)
                nbytes = payload.numel() * payload.element_size()
                if self.link:
                    if machine != _MACHINE:  # its clock is another one: the fastest message tells best by how much
                        ahead = min(ahead, self.now() - sent)
                        leaves += ahead
                    held = self._hold(peer, nbytes, leaves)
                if numel:
                    _complete(dist.irecv(payload.view(torch.uint8), peer, tag=1))
                with self._changed:
                    if machine != _MACHINE:
                        sent = self.now()
                    if dtype is None:
                        message = Message(peer, tag, None, payload.numpy().tobytes(), nbytes, n)
                    else:
                        message = Message(peer, tag, payload.to(self.device), None, nbytes, n)
                    if held:
                        held.happen = partial(self._put, message, sent)
                    else:
                        self._put(message, sent)
                    self._changed.notify_all()
        except RuntimeError:
            if held and not held.happen:
                with self._changed:
                    held.happen = lambda: None
            self._ended(peer, "it died")

    def _hold(self, peer: int, nbytes: int, leaves: float) -> Held:
        """Let a message pass this rank's card while it really comes."""
        assert self.link
        with self._changed:
            held = self.link.hold(peer, nbytes, leaves, None)
            self._changed.notify_all()
        return held

    def _ended(self, peer: int, why: str, died: bool = True) -> None:
        with self._changed:
            self._lose(peer, why, died)
            self._changed.notify_all()

    def _receive(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        with self._changed:  # between looking into the inbox and waiting, nothing may arrive unnoticed
            return super()._receive(src, tag, timeout)

    def _look(self, src: int) -> bool:
        if self.link is None:
            return False  # the threads fill the inbox
        with self._changed:
            return self.link.happen(self.now())

    def _progress(self, src: int, seconds: float) -> None:
        if self.link is None:
            self._changed.wait(seconds)
        elif not self.link.happen(self.now()):
            self._changed.wait(min(seconds, self.link.due(self.now())))
            self.link.happen(self.now())


@dataclass
class _Queued:
    """A message that waits for its thread."""

    header: torch.Tensor  # of what `_receive_all` unpacks, or of _GOODBYE
    payload: torch.Tensor | None  # None: the goodbye, after which nothing is sent
    sent: threading.Event = field(default_factory=threading.Event)


class _Delivery(Work):
    """Done when the peer has its copy, and not before it would have `left` this rank's card."""

    def __init__(self, transport: ProcessGroup, dst: int, sent: threading.Event, left: float) -> None:
        self._transport, self._dst, self._sent, self._left = transport, dst, sent, left

    @property
    def done(self) -> bool:
        sent = self._sent.is_set() and (not self._left or self._transport.now() >= self._left)
        return sent or self._dst in self._transport._gone

    def wait(self) -> None:
        if self.done:
            return
        transport = self._transport
        t0, deadline = transport.now(), transport._running() + transport.timeout
        while not self.done:
            remaining = deadline - transport._running()
            if remaining <= 0:
                raise transport._overdue("the release of a message", self._dst, transport.timeout)
            if self._sent.wait(min(remaining, SLICE_S)):
                transport.sleep(min(max(0.0, self._left - transport.now()), SLICE_S))
        transport.recorder.add("wait", t0, transport.now(), peer=self._dst, tag="release")


def _complete(work: dist.Work | None) -> None:
    assert work is not None  # None is for processes outside the group
    work.wait(_FOR_EVER)


def _header(description: Any) -> torch.Tensor:
    raw = pickle.dumps(description)
    if len(raw) > _HEADER_BYTES:
        raise ValueError(f"the tag {description[0]!r} is too long for the header of a message")
    return torch.frombuffer(bytearray(raw.ljust(_HEADER_BYTES, b"\0")), dtype=torch.uint8)
