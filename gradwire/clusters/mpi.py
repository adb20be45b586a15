"""The same transport over MPI (mpi4py): ranks that share no memory, as mpirun starts them.

A message is two of MPI's: a header of fixed size, then the payload, which MPI takes from the sender's memory and puts
into the receiver's; only objects are pickled. A receive for the next header is always posted. When one has come, a
receive of exactly the payload's size is; that of a long vector only when it is read, for then it may be known where its
elements are to be, and they are put there at once; or when this rank has nothing else to do.

MPI cannot wait with a limit. So a rank that waits polls: at first without pause, then with short ones. A large
message is under way until its receiver next calls the transport.

mpirun ends all ranks when one dies. So a peer is lost here only by closing its transport, never by its death.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from mpi4py import MPI
from typing_extensions import override

from gradwire.clusters.headers import SIZE, Header, Kind, pack, unpack
from gradwire.clusters.remote import WHY, Buffers, Remote, Sending
from gradwire.core.records.errors import UsageError
from gradwire.core.transports import timing
from gradwire.core.transports.inbox import ANY
from gradwire.core.transports.messages import Message, Setup, wait_until
from gradwire.core.transports.throttle import Held

_HEADER, _PAYLOAD = 1, 2  # MPI's tags
_SPIN_S = 2e-3  # seconds of looking without pause
_LONGEST_PAUSE_S = 1e-3  # seconds
_LONG = 1 << 16  # bytes
_TICKETS = 1 << 14  # the number of payloads on their way from one rank to another that have distinct tags
_UNSEEN = 8  # messages to a peer, not yet tested for completion
_abandoned: list[Any] = []  # what MPI may still use, of transports whose close reached its limit


class Mpi(Remote):
    """`Transport` over a communicator, by default one of its own for all ranks that mpirun has started."""

    def __init__(self, setup: Setup, comm: MPI.Intracomm | None = None) -> None:
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise UsageError("this MPI allows calls from one thread only; a rank that is busy needs a second one")
        self._own_comm = comm is None
        self._comm = MPI.COMM_WORLD.Dup() if comm is None else comm
        super().__init__(self._comm.rank, self._comm.size, setup)
        self._lock = threading.RLock()  # one thread at a time: a second one sends while the first is busy
        self._sending: dict[int, deque[Sent]] = {peer: deque() for peer in self.peers}
        # Messages whose header has come, by source, in order: request, header, payload, what holds it back, ticket.
        self._coming: dict[int, deque[tuple[MPI.Request, Header, Any, Held | None, int]]] = {}
        self.unread: dict[tuple[int, int], LongVector] = {}  # long vectors that are not here, by source and ticket
        self._have_closed: set[int] = set()
        self._payloads_sent, self._payloads_expected = [0] * self.world_size, [0] * self.world_size
        self.buffers = Buffers()
        self._header, self._status = bytearray(SIZE), MPI.Status()
        self._next_header = self._comm.Recv_init(self._header, MPI.ANY_SOURCE, _HEADER)
        self._next_header.Start()

    def close(self) -> None:
        """Close; return when all peers have closed too, at the latest after `timeout`."""
        if self._closed:
            return
        self._closed = True
        for peer in self.peers:
            self._post(peer, Header(self._farewell))
        slices = self._running.slices(self.timeout)
        while not (over := self._is_over()) and (seconds := next(slices, 0.0)):
            self.wait_for(lambda: self._read_arrived() or self._is_over(), seconds)
        self._next_header.Cancel()
        self._next_header.Wait()
        self._next_header.Free()
        if not over:
            _abandoned.append((self._comm, self._sending, self._coming, self.unread))
        elif self._own_comm:
            self._comm.Free()

    def _is_over(self) -> bool:
        """Whether all peers have closed, and all sent messages were delivered."""
        self._fetch_unread()
        gone = all(sent.has_gone() for queue in self._sending.values() for sent in queue)
        here = not self._coming and all(message.is_here() for message in list(self.unread.values()))
        return gone and here and len(self._have_closed) == len(self.peers)

    # Sending

    def _post(self, dst: int, header: Header, payload: torch.Tensor | bytes = b"", left: float = 0.0) -> "Sent":
        raw, nbytes = pack(header), header.nbytes
        with self._lock:
            requests = [self._comm.Isend(raw, dst, _HEADER)]
            if nbytes:
                ticket = self._payloads_sent[dst] = (self._payloads_sent[dst] + 1) % _TICKETS
                requests.append(self._comm.Isend(memory_of(payload, nbytes), dst, _PAYLOAD + ticket))
            sent = Sent(self, dst, left, requests, payload)
            self._sending[dst].append(sent)
            if len(self._sending[dst]) > _UNSEEN:
                self._forget_gone()
        return sent

    def _forget_gone(self) -> None:
        """Free the memory of messages that were delivered."""
        with self._lock:
            for queue in self._sending.values():
                while queue and queue[0].has_gone():
                    queue.popleft()

    # Receiving

    def _read_arrived(self) -> bool:
        """Read the next message, without waiting; return whether there was one.

        Each time that MPI finds nothing, it may give the core to another rank; so a message is not looked beyond.
        """
        with self._lock:
            moved = self._next_header.Test(self._status)
            if moved:
                src, raw = self._status.source, self._header[: self._status.count]
                self._next_header.Start()
                self._expect(src, raw)
            if self._coming:
                for src in list(self._coming):
                    moved = self._finish(src) or moved
            if self.link:
                moved = self.link.happen(self.now()) or moved
            return moved

    def _expect(self, src: int, raw: bytearray) -> None:
        """Post a receive for the payload of a header."""
        try:
            header = unpack(raw)
        except ValueError as error:
            raise ValueError(f"what rank {src} has sent is {error}") from error
        nbytes, kind, request, ticket = header.nbytes, header.kind, MPI.REQUEST_NULL, 0
        payload: torch.Tensor | bytearray | None = None
        if nbytes:
            ticket = self._payloads_expected[src] = (self._payloads_expected[src] + 1) % _TICKETS
        if kind is Kind.TENSOR and (nbytes < _LONG or self._on_gpu):
            payload = self.buffers.take(header.numel, header.dtype)
        elif kind is Kind.OBJECT:
            payload = bytearray(nbytes)
        if nbytes and payload is not None:
            request = self.receive(payload, nbytes, src, ticket)
        held = self._hold(src, header) if self.link else None
        if src in self._coming:
            self._coming[src].append((request, header, payload, held, ticket))
        elif request.Test():
            self._arrived(src, header, payload, held, ticket)
        else:
            self._coming[src] = deque([(request, header, payload, held, ticket)])

    def receive(self, payload: torch.Tensor | bytearray, nbytes: int, src: int, ticket: int) -> MPI.Request:
        """Begin to receive a payload."""
        with self._lock:
            return self._comm.Irecv(memory_of(payload, nbytes), src, _PAYLOAD + ticket)

    def _finish(self, src: int) -> bool:
        """Read the complete messages from `src`, in order; return whether there were any."""
        queue, moved = self._coming[src], False
        while queue and queue[0][0].Test():
            moved = True
            self._arrived(src, *queue.popleft()[1:])
        if not queue:
            del self._coming[src]
        return moved

    def _arrived(self, src: int, header: Header, payload: Any, held: Held | None, ticket: int) -> None:
        nbytes = header.nbytes
        if header.kind in WHY:
            self._fetch_unread()  # its sender waits for that
            self._have_closed.add(src)
            self._lose(src, *WHY[header.kind])
            return
        if header.kind is Kind.OBJECT:
            message = Message(src, header.tag, None, payload, nbytes, header.n)
        elif payload is None:
            message = self.unread[src, ticket] = LongVector(self, src, header, ticket)
        elif self._on_gpu:
            message = Message(src, header.tag, payload.to(self.device), None, nbytes, header.n)
        else:
            give_back = partial(self.buffers.give_back, payload)
            message = Message(src, header.tag, payload, None, nbytes, header.n, give_back)
        self._put(message, header, held)

    def _fetch_unread(self) -> None:
        """Begin to receive the unread messages."""
        for message in list(self.unread.values()):
            message.fetch()

    def look(self) -> None:
        """Read the messages that have arrived, and begin to receive the next."""
        self._read_arrived()
        self._fetch_unread()

    def _look(self, src: int) -> bool:
        found = self._read_arrived()
        while src == ANY and self._read_arrived():
            found = True
        return found

    def _progress(self, src: int, seconds: float) -> None:
        if seconds:
            self.wait_for(self._read_arrived, seconds)
        else:
            self._look(ANY)

    def wait_for(self, happened: Callable[[], bool], seconds: float) -> None:
        """Read messages until `happened` is true, for at most `seconds`; poll less and less often."""
        t0 = timing.now()
        while not happened() and (waited := timing.now() - t0) < seconds:
            if waited > _SPIN_S:
                self._forget_gone()
                self._fetch_unread()
                pause = min(_LONGEST_PAUSE_S, waited / 8, seconds - waited)
                timing.sleep(min(pause, self.link.due(self.now())) if self.link else pause)


class LongVector(Message):
    """A long vector that comes when it is read: right to where it is to be, if that is known."""

    __slots__ = ("_header", "_mpi", "_request", "_ticket")

    def __init__(self, transport: Mpi, src: int, header: Header, ticket: int) -> None:
        super().__init__(src, header.tag, torch.empty(0), None, header.nbytes, header.n)
        self._mpi, self._ticket, self._header = transport, ticket, header
        self._request: MPI.Request | None = None  # None: not even begun

    def fetch(self, out: torch.Tensor | None = None) -> None:
        """Begin to receive it, unless it is on its way: into `out`, or into a buffer."""
        if self._request is None:
            buffers = self._mpi.buffers
            self.tensor = buffers.take(self._header.numel, self._header.dtype) if out is None else out
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
        look = partial(self._mpi.wait_for, self.is_here)
        wait_until(self.is_here, look, self._mpi, f"the elements of {self.tag!r}", self.src)

    @property
    @override
    def vector(self) -> torch.Tensor:
        self._come()
        return super().vector

    @override
    def copy_to(self, out: torch.Tensor) -> None:
        fits = out.device.type == "cpu" and out.is_contiguous() and out.dtype == self._header.dtype
        if fits and out.numel() == self._header.numel:
            self._come(out)
        super().copy_to(out)

    @override
    def detach(self) -> Self:
        self._come(torch.empty(self._header.numel, dtype=self._header.dtype) if self._request is None else None)
        return super().detach()

    @override
    def release(self) -> None:
        self._come()
        super().release()


@dataclass(slots=True, eq=False, repr=False)
class Sent(Sending):
    """A message that is being sent over MPI."""

    _transport: Mpi
    _requests: list[MPI.Request]
    _payload: Any  # lives as long as MPI reads it

    def has_gone(self) -> bool:
        """Return whether MPI needs the payload no more."""
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
