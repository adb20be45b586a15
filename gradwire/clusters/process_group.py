"""Messages over torch.distributed: between ranks that share no memory, on one machine or on several.

Every message is a header of fixed size, see `headers.py`, and then its payload: in one piece with the header if it is
short, which is a copy that does not block. gloo carries both. It can neither poll nor end a wait without closing all
its connections, so for each peer one thread receives header and payload into the inbox, and the waiting, with its
limit, is done there; a second thread waits until the peer has received what was sent to it. So no peer holds up
another. gloo fails the receive from a peer that is dead. Then every wait for a message that is not in the inbox
ends: the launchers end all ranks when one dies.

On GPUs of their own, payloads that are tensors may go through NCCL instead, see `rendezvous.py`.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from gradwire.clusters.headers import SIZE, Header, Kind, pack, unpack
from gradwire.clusters.remote import WHY, Buffers, Remote, Sending
from gradwire.core.transports.inbox import Tags
from gradwire.core.transports.messages import Message, PeerLost, Setup, as_vector
from gradwire.core.transports.throttle import Held
from gradwire.core.transports.timing import sleep

_FOR_EVER = timedelta(days=365)  # gloo's own time-outs would close all connections
_HEADER, _PAYLOAD = 0, 1  # the tags of torch.distributed
_TOGETHER = 1 << 20  # bytes of a payload that still travels in one piece with its header
# Receives from a peer that gloo has before they are needed: it sends nothing before the receiver has allowed it.
_AHEAD = 2
_PARTING_S = 1.5  # that `close` takes at most after a death


class ProcessGroup(Remote):
    """`Transport` over torch.distributed; the default process group must be initialised, with gloo.

    `groups`: what carries tensors to higher and to lower ranks, from device to device; none: gloo, by way of
    the CPU.
    """

    def __init__(self, setup: Setup, groups: Sequence[Any] = ()) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), setup)
        self._groups, self._from_gpu = groups, bool(groups)
        # Of gloo too: a receiver allows a message by one of its own, which must not queue behind the data it sends.
        limit = timedelta(seconds=self.timeout)
        self._ways: tuple[Any, ...] = dist.group.WORLD, dist.new_group(backend="gloo", timeout=limit)
        self._changed = threading.Condition(threading.RLock())  # guards the inbox and the set of lost peers
        self._buffers = Buffers()
        self._posting = threading.Lock()  # a payload follows its header
        self._posted: dict[int, queue.SimpleQueue[_Sent | None]] = {peer: queue.SimpleQueue() for peer in self.peers}
        works = (self._receive_from, self._wait_until_received)
        self._threads = [
            threading.Thread(target=work, args=[peer], daemon=True) for peer in self.peers for work in works
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close; return when all peers have closed too or are gone, at the latest after `timeout`."""
        if self._closed:
            return
        self._closed = True
        # After a death, long enough that the others find the dead themselves, and do not take this rank for one.
        slices = self._running.slices(min(self.timeout, _PARTING_S) if self.inbox.over else self.timeout)
        for peer in self.peers:
            self._post(peer, Header(self._farewell))
            self._posted[peer].put(None)
        for thread in self._threads:
            while thread.is_alive() and (seconds := next(slices, 0.0)):
                thread.join(seconds)
        dist.destroy_process_group()
        self._ways = self._groups = ()  # whose connections close with the last reference

    # Sending

    def _post(self, dst: int, header: Header, payload: torch.Tensor | bytes = b"", left: float = 0.0) -> "_Sent":
        """Give a message to gloo, and to the thread that waits until it is received."""
        way, group = self._ways[self.rank > dst], self._group(header, self.rank, dst)
        pieces = [_bytes(pack(header)), *([_bytes(payload)] if header.nbytes else [])]
        copied = group is way and header.nbytes <= _TOGETHER
        if copied and header.nbytes:
            pieces = [torch.cat(pieces)]
        sent = _Sent(self, dst, left, pieces)
        with self._posting:
            try:
                for piece, on, tag in zip(pieces, (way, group), (_HEADER, _PAYLOAD), strict=False):
                    sent.works.append(dist.isend(piece, dst, on, tag=tag))
            except RuntimeError:
                sent.received.set()  # the peer is gone; reported when all that it sent is received
            else:
                self._posted[dst].put(sent)
        if copied:
            sent.received.set()
        return sent

    def _group(self, header: Header, src: int, dst: int) -> Any:
        """Return what carries the payload."""
        return (self._groups if self._groups and header.kind == Kind.TENSOR else self._ways)[src > dst]

    def _wait_until_received(self, dst: int) -> None:
        while (sent := self._posted[dst].get()) is not None:
            with suppress(RuntimeError):  # as above
                _complete(sent.works[-1])  # the payload goes when the header is received
            sent.received.set()
            sent.pieces, sent.works = [], []

    # Receiving

    def _receive_from(self, src: int) -> None:
        """Put all messages of a peer into the inbox, and at last that it is gone."""
        way = self._ways[src > self.rank]
        memory = [self._buffers.take(SIZE + _TOGETHER, torch.uint8) for _ in range(_AHEAD)]
        with torch.cuda.stream(torch.cuda.Stream(self.device) if self._on_gpu else None):
            try:
                awaited = deque((raw, way.recv([raw], src, _HEADER)) for raw in memory)
                while True:
                    raw, work = awaited.popleft()
                    _complete(work)
                    header = unpack(raw[:SIZE].numpy().tobytes())
                    if header.kind in WHY:
                        self._ended(src, *WHY[header.kind])
                        return
                    raw = self._receive_payload(src, header, raw)
                    awaited.append((raw, way.recv([raw], src, _HEADER)))
            except RuntimeError:
                self._ended(src, "it died")  # or this rank has closed
            except ValueError as error:  # the messages after it cannot be parsed
                self._ended(src, f"what it has sent is {error}")

    def _receive_payload(self, src: int, header: Header, raw: torch.Tensor) -> torch.Tensor:
        """Put the message into the inbox; return memory for the next header."""
        held = self._hold(src, header) if self.link else None
        group = self._group(header, src, self.rank)
        try:
            give_back: Callable[[], None] | None = None
            if group in self._ways and header.nbytes <= _TOGETHER:
                payload = raw[SIZE : SIZE + header.nbytes].view(header.dtype)
                if header.nbytes <= _TOGETHER // 16 or header.kind == Kind.OBJECT:
                    payload = payload.clone()  # so that a message that is kept for long keeps no more memory
                else:
                    give_back = partial(self._buffers.give_back, raw)
                    raw = self._buffers.take(SIZE + _TOGETHER, torch.uint8)
            else:
                if group in self._groups:
                    payload = torch.empty(header.numel, dtype=header.dtype, device=self.device)
                else:
                    payload = self._buffers.take(header.numel, header.dtype)
                    give_back = partial(self._buffers.give_back, payload)
                if header.numel:
                    _complete(dist.irecv(payload.view(torch.uint8), src, group, tag=_PAYLOAD))
            if header.kind == Kind.OBJECT:
                message = Message(src, header.tag, None, payload.numpy().tobytes(), header.nbytes, header.n)
            else:
                tensor = payload.to(self.device)
                if self._on_gpu:
                    tensor.record_stream(torch.cuda.default_stream(self.device))
                    torch.cuda.current_stream(self.device).synchronize()
                message = Message(src, header.tag, tensor, None, header.nbytes, header.n, give_back)
        except RuntimeError:
            if held:
                with self._changed:
                    held.happen = lambda: None
            raise
        with self._changed:
            self._put(message, header, held)
            self._changed.notify_all()
        return raw

    def _hold(self, src: int, header: Header) -> Held | None:
        with self._changed:
            held = super()._hold(src, header)
            self._changed.notify_all()
        return held

    def _ended(self, peer: int, why: str, died: bool = True) -> None:
        with self._changed:
            if died and not self.inbox.over:
                self.inbox.over = PeerLost(peer, why)
            self._lose(peer, why, died)
            self._changed.notify_all()

    def _receive(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        with self._changed:  # between looking into the inbox and waiting, nothing may arrive unnoticed
            return super()._receive(src, tag, timeout)

    def _look(self, src: int) -> bool:
        if self.link is None:
            return False  # the thread fills the inbox
        with self._changed:
            return self.link.happen(self.now())

    def _progress(self, src: int, seconds: float) -> None:
        if self.link is None:
            self._changed.wait(seconds)
        elif not self.link.happen(self.now()):
            self._changed.wait(min(seconds, self.link.due(self.now())))
            self.link.happen(self.now())


@dataclass(slots=True, eq=False, repr=False)
class _Sent(Sending):
    """See Sending: the peer then has its copy. gloo reads the `pieces` until they are received."""

    pieces: list[torch.Tensor]
    works: list[dist.Work | None] = field(default_factory=list)
    received: threading.Event = field(default_factory=threading.Event)

    @override
    def has_gone(self) -> bool:
        return self.received.is_set()

    def _look(self, seconds: float) -> None:
        if self.received.wait(seconds):
            sleep(min(max(0.0, self._left - self._transport.now()), seconds))


def _bytes(payload: torch.Tensor | bytes) -> torch.Tensor:
    """Return what gloo takes."""
    if isinstance(payload, bytes):
        return torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return as_vector(payload).view(torch.uint8)


def _complete(work: dist.Work | None) -> None:
    assert work is not None  # None is for processes outside the group
    work.wait(_FOR_EVER)
