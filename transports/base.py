"""What every transport promises: one rank's view of the world, and messages between ranks.

A transport moves vectors and small Python objects; it does all the waiting of a strategy, bounds every wait, notices
dead peers, and writes down every message. How bytes get across is an engine's business: see `shared_memory.py` and
`process_group.py`.
"""

import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, overload

import torch

from records.events import Recorder, clock

ANY = -1
_BARRIER = "(barrier)"


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

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the receiver needs the sender's memory no longer (also true once the receiver is dead)."""

    @abstractmethod
    def wait(self) -> None:
        """Block until `done`. Raises WaitTimeout."""


class Message:
    """A received message: `tensor` (a vector, None for an object) or `object`; `tensor` is good until `release()`."""

    __slots__ = ("_noted", "_receiver", "_t0", "arrival", "nbytes", "object", "src", "tag", "tensor", "ticket")

    def __init__(
        self, src: int, tag: str, tensor: torch.Tensor | None, obj: Any, nbytes: int, ticket: int | None = None
    ) -> None:
        self.src = src
        self.tag = tag
        self.tensor = tensor
        self.object = obj
        self.nbytes = nbytes
        self.ticket = ticket  # what the engine needs to tell the sender of the release
        self.arrival = 0
        self._receiver: Transport | None = None
        self._t0 = 0.0
        self._noted = False

    def keep(self) -> Self:
        """Write the receipt down here, for the message is kept: the time until its release is not all spent on it."""
        if self._receiver is not None and not self._noted:
            self._receiver._note(self, self._t0)
            self._noted = True
        return self

    def release(self) -> None:
        """Tell the sender that its memory is its own again. `tensor` is not to be used afterwards."""
        self.keep()
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            receiver._release(self)

    def copy_to(self, out: torch.Tensor) -> None:
        """Copy the tensor into `out` (same length) and release the message."""
        with self:
            out.copy_(self.vector)

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


class Transport(ABC):
    """One rank's view of the world.

    `rank`, `world_size` and `device` say who this is and where its vectors live; `recorder` gets every message;
    `timeout` (seconds) bounds every wait that is given no limit of its own. `messages_sent[dst]` and
    `bytes_sent[dst]` count what was sent, in bytes of payload as they would travel between machines.
    `rejoined` says that this rank was started again in the middle of a run, and sees only those who may let it in.
    """

    rejoined = False

    def __init__(
        self, rank: int, world_size: int, device: torch.device, timeout: float, recorder: Recorder | None
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.timeout = timeout
        self.recorder = recorder or Recorder(rank, enabled=False)
        self.messages_sent = [0] * world_size
        self.bytes_sent = [0] * world_size
        self.peers = [peer for peer in range(world_size) if peer != rank]
        self._closed = False
        self._inbox: dict[tuple[int, str], deque[Message]] = {}
        self._arrivals = 0
        self._gone: dict[int, str] = {}  # peers that died or left, and why
        self._news: deque[PeerLost | PeerReturned] = deque()  # what no recv from ANY has raised yet

    # What an engine does

    @abstractmethod
    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a zeroed vector [numel] on `device` whose slices peers can read in place.

        Called by all ranks in the same order.
        """

    @abstractmethod
    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """Return one vector [numel] in one memory, zeroed, writable by all of `ranks`, which all call this.

        Raises RuntimeError on an engine without shared memory.
        """

    @abstractmethod
    def close(self) -> None:
        """Say goodbye and give everything back. Messages already sent are still delivered."""

    @abstractmethod
    def _send(self, value: Any, dst: int, tag: str) -> tuple[Work, int]:
        """Send a tensor or an object; return its Work and its payload in bytes."""

    @abstractmethod
    def _progress(self, src: int, seconds: float) -> None:
        """Move what has arrived from `src` (or ANY) to the inbox; wait at most `seconds` for something."""

    @abstractmethod
    def _give_back(self, src: int, ticket: int) -> None:
        """Tell `src` that the message with this ticket is not read any more."""

    def admit(self, peer: int) -> None:
        """Let a rank that was started again take part, after a PeerReturned. What its earlier life sent is forgotten.

        The newcomer calls `allocate` and `shared_vector` as everybody did at the start.
        """
        raise RuntimeError("no rank returns on this transport")

    def may_return(self) -> bool:
        """Whether a dead rank may yet be started again."""
        return False

    # What a strategy calls

    def isend(self, value: Any, dst: int, tag: str) -> Work:
        """Send `value` to rank `dst` and return at once.

        A tensor is sent as a vector, any other value as an object. A contiguous slice of an allocated vector is not
        to be changed until the Work is done; any other tensor is copied first. Messages of one (source, tag) arrive
        in the order they were sent. Raises PeerLost.
        """
        t0 = clock()
        self._check_open()
        if dst in self._gone:
            raise PeerLost(dst, self._gone[dst])
        if dst == self.rank or not 0 <= dst < self.world_size:
            raise ValueError(f"rank {self.rank} cannot send to rank {dst} in a world of {self.world_size}")
        work, nbytes = self._send(value, dst, tag)
        self.messages_sent[dst] += 1
        self.bytes_sent[dst] += nbytes
        self.recorder.add("communicate", t0, clock(), "send", dst, tag, nbytes)
        return work

    @overload
    def recv(self, src: int, tag: str, timeout: None = None) -> Message: ...

    @overload
    def recv(self, src: int, tag: str, timeout: float) -> Message | None: ...

    def recv(self, src: int, tag: str, timeout: float | None = None) -> Message | None:
        """Return the next message with `tag` of rank `src`, or of ANY (the one that arrived first).

        `timeout` seconds instead of the transport's own limit; 0 polls: None if there is nothing yet. Raises
        PeerLost (for ANY once a dead peer, and when nobody is left), PeerReturned (for ANY), WaitTimeout.
        """
        t0 = clock()
        self._check_open()
        if src != ANY and (src == self.rank or not 0 <= src < self.world_size):
            raise ValueError(f"rank {self.rank} cannot receive from rank {src} in a world of {self.world_size}")
        message = self._pop(src, tag)
        if message is None:
            message = self._receive(src, tag, timeout)
            if message is None:
                return None
            waited_from, t0 = t0, clock()
            self.recorder.add("wait", waited_from, t0, peer=message.src, tag=tag)
        message._receiver, message._t0 = self, t0
        if message.tensor is not None:
            message.tensor = message.tensor.to(self.device)  # a copy if it lies on another GPU
        else:
            message.object = pickle.loads(message.object)
            message.release()
        return message

    def barrier(self) -> None:
        """Wait until all ranks are here. Not counted as messages. Raises PeerLost, WaitTimeout."""
        self._check_open()
        if self.rank == 0:
            for peer in self.peers:
                self._receive(peer, _BARRIER)
            for peer in self.peers:
                self._send(None, peer, _BARRIER)
        else:
            self._send(None, 0, _BARRIER)
            self._receive(0, _BARRIER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Shared by the engines

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"rank {self.rank} has closed its transport")

    def _note(self, message: Message, t0: float) -> None:
        """Write a received message down: its span ends when it is kept or released, for until then it is read."""
        self._synchronize()
        self.recorder.add("communicate", t0, clock(), "recv", message.src, message.tag, message.nbytes)

    def _release(self, message: Message) -> None:
        if message.ticket is not None:
            self._synchronize()
            self._give_back(message.src, message.ticket)

    def _receive(self, src: int, tag: str, timeout: float | None = None) -> Message | None:
        """`recv` without the records."""
        limit = self.timeout if timeout is None else timeout
        deadline = clock() + limit
        if timeout == 0:
            self._progress(src, 0)
        while (message := self._pop(src, tag)) is None:
            self._raise_if_gone(src, tag)
            if timeout == 0:
                return None
            remaining = deadline - clock()
            if remaining <= 0:
                raise self._overdue(f"{tag!r}", src, limit)
            self._progress(src, remaining)
        return message

    def _overdue(self, what: str, src: int, limit: float) -> WaitTimeout:
        ranks = [peer for peer in self.peers if peer not in self._gone] if src == ANY else [src]
        return WaitTimeout(self.rank, limit, what, ranks)

    def _raise_if_gone(self, src: int, tag: str) -> None:
        if src == ANY and self._news:
            news = self._news.popleft()
            if isinstance(news, PeerReturned):
                raise news
            src = news.rank
        elif src == ANY and len(self._gone) == len(self.peers) and not self.may_return():
            src = next(iter(self._gone), ANY)
            if src == ANY:
                raise PeerLost(ANY, "there is no other rank", f"{tag!r}")
        if src in self._gone:
            raise PeerLost(src, self._gone[src], f"{tag!r} from rank {src}")

    def _arrive(
        self, src: int, tag: str, tensor: torch.Tensor | None, obj: Any, nbytes: int, ticket: int | None = None
    ) -> None:
        """Put a message into the inbox, an object still pickled; called by the engine, in the order of arrival."""
        message = Message(src, tag, tensor, obj, nbytes, ticket)
        self._arrivals += 1
        message.arrival = self._arrivals
        key = (src, tag)
        if key not in self._inbox:
            self._inbox[key] = deque()
        self._inbox[key].append(message)

    def _pop(self, src: int, tag: str) -> Message | None:
        if src != ANY:
            queue = self._inbox.get((src, tag))
            return queue.popleft() if queue else None
        heads = [queue for peer in self.peers if (queue := self._inbox.get((peer, tag)))]
        return min(heads, key=lambda queue: queue[0].arrival).popleft() if heads else None

    def _lose(self, peer: int, why: str, died: bool = True) -> None:
        """Note that `peer` is gone: by its death, or because it has closed."""
        if peer not in self._gone:
            self._gone[peer] = why
            if died:
                self._news.append(PeerLost(peer, why))

    def _synchronize(self) -> None:
        """Finish the work queued on this rank's GPU, so that another process may look at its memory."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


def as_vector(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a vector of stride 1, copied only if they do not lie in one piece."""
    # Not reshape(-1): one element, or none, may keep any stride, and then there is no view of its bytes.
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
