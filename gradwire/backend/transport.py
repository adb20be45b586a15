"""Shared memory between the ranks of a process group, which know of each other what they are in."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from typing_extensions import override

from gradwire.backend.memory import Copies, Lent, Owned, room
from gradwire.backend.rendezvous import Pipes
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.frames import OBJECT, frame, vector_frame
from gradwire.core.transports.inbox import ANY
from gradwire.core.transports.memory import remove_segments
from gradwire.core.transports.messages import Delivered, Message, Setup, Work, as_vector
from gradwire.core.transports.peer import DIED, Peer
from gradwire.core.transports.shared_memory import SharedMemory
from gradwire.core.transports.staging_buffer import SLOT_BYTES, fits

_FAILED, _WAITS, _FREED = "(failed)", "(waits)", "(freed)"  # tags: why a rank ends the group; it waits; it freed memory
_TELL_S = 1.0  # a rank that has waited so long tells the others where
_IN_PIPE = 4096  # bytes of a tensor that travel in the pipe itself
_OFTEN = 3  # calls after which memory is taken for a bucket's
_MOST_LENT = 64  # storages, of which each takes two files here and one of each peer
_REMEMBERED = 1000  # calls, in case a peer is still in one of them
_DELIVERED = Delivered()
_MOST = 400  # characters of words, of which the others are hashed


class Place(NamedTuple):
    """Where a rank is: its call's number in the group (of a message 0), its words, and a line of the script."""

    number: int
    words: str
    line: str

    def __str__(self) -> str:
        return f"{self.words} at {self.line}"

    @property
    def suffix(self) -> str:
        """How it travels, behind the tag of a message."""
        return f"\n{self.number}\n{_short(self.words)}\n{self.line[-100:]}"


@dataclass
class Shared:
    """What the transports of one group share: the ranks of the world, and what has ended the group.

    `last_of`: where each peer was when it was heard of last.
    """

    ranks: Sequence[int]
    failure: str = ""
    last_of: dict[int, Place] = field(default_factory=dict)


class GroupTransport(SharedMemory):
    """`Transport` between the members of a group. Each message says which call of its sender it belongs to.

    A rank whose call does not fit to that of another, or that loses one, tells all: see `fail`. `place` is its call.
    """

    def __init__(self, pipes: Pipes, setup: Setup, shared: Shared) -> None:
        self._shared_state, self._pids = shared, pipes.pids
        self._owned, self._buffers = Owned(), Copies()
        self._uses = WeakKeyDictionary[Any, int]()  # of memory: that of a bucket is used again and again
        self._lent, self._closes = 0, False
        self._unread: list[Work] = []  # messages of lent memory, since the last call
        self.place = Place(0, "", "")
        self._suffix, self._tell_at, self._has_told = self.place.suffix, float("inf"), False
        self._own: dict[int, Place] = {}  # the last calls, by number
        self._ahead: dict[int, tuple[int, Place]] = {}  # calls of others that this rank has not entered
        self.last_of = shared.last_of
        super().__init__(pipes, setup)

    # What ranks are in

    def enter(self, place: Place) -> None:
        """Begin a call. Raises RunFailed if others are in another one of this number, or the group has ended."""
        self.place, self._suffix = place, place.suffix
        self._tell_at = self.now() + _TELL_S
        if place.number:
            self._own[place.number] = place
            self._own.pop(place.number - _REMEMBERED, None)
            if place.number in self._ahead:
                self._compare(*self._ahead.pop(place.number))
        self.check_group()

    def check_group(self) -> None:
        """Check that the group goes on, unless this closes. Raises RunFailed."""
        if self._shared_state.failure and not self._closes:
            raise RunFailed(self._shared_state.failure)

    def fail(self, why: str) -> None:
        """End the group, for a reason that the others learn too."""
        self._shared_state.failure = self._shared_state.failure or why
        self.tell_failure()

    def tell_failure(self) -> None:
        """Tell the others why the group has ended, if it has."""
        if self._shared_state.failure and not self._has_told:
            self._has_told = True
            self._tell(_FAILED, pickle.dumps(self._shared_state.failure))

    def named(self, rank: int) -> int:
        """Return the rank in the world of a member."""
        return self._shared_state.ranks[rank]

    def _tell(self, tag: str, payload: bytes = b"") -> None:
        for peer in self._peers.values():
            if peer.open:
                peer.write(frame(OBJECT, tag + self._suffix, payload))

    def _hear(self, src: int, place: Place) -> None:
        self.last_of[src] = place
        if place.number in self._own:
            self._compare(src, place)
        elif place.number > self.place.number:
            self._ahead.setdefault(place.number, (src, place))

    def _compare(self, src: int, other: Place) -> None:
        own = self._own[other.number]
        if other.words != _short(own.words):
            self.fail(f"mismatch: rank {self.named(src)} is in {other}, rank {self.named(self.rank)} is in {own}")

    @override
    def arrive(self, message: Message, sent: float, leaves: float) -> None:
        message.tag, number, words, line = message.tag.split("\n")
        place = Place(int(number), words, line)
        self._hear(message.src, place)
        if message.tag == _FAILED:
            self._shared_state.failure = self._shared_state.failure or pickle.loads(message.object)
        elif message.tag == _FREED:
            self._peers[message.src].forget(pickle.loads(message.object))
        elif message.tag != _WAITS:
            if message.tensor is not None and not place.number and place.words:
                message.object = place  # of a message of the user's
            super().arrive(message, sent, leaves)

    @override
    def _progress(self, src: int, seconds: float) -> None:
        self.check_group()
        super()._progress(src, seconds)
        if seconds and self.now() > self._tell_at:
            self._tell_at = float("inf")
            self._tell(_WAITS)
        self.check_group()

    def look(self) -> None:
        """Read what has arrived."""
        self._move(ANY, 0)

    @override
    def ended(self, peer: Peer, why: str) -> None:
        super().ended(peer, why)
        if why == DIED:
            remove_segments(self._pids[peer.rank])  # there is none, unless it was killed while it made one

    # Memory

    def lend(self, vector: torch.Tensor) -> None:
        """Let peers read slices of a vector in place, if its memory is used again and again, as that of a bucket is.

        Moves that memory to shared memory, where its tensors are then.
        """
        storage = vector.untyped_storage()
        if vector.nbytes <= SLOT_BYTES or self.is_shared(vector):
            return
        uses = self._uses[storage] = self._uses.get(storage, 0) + 1
        if uses >= _OFTEN and storage.resizable() and not storage.is_shared():
            self._free_lent()
            if self._lent < _MOST_LENT:  # peers read of others in copies
                self._allocated[storage.data_ptr()] = next(self.numbers), Lent(storage, vector.dtype)
                self._lent += 1

    def _free_lent(self) -> None:
        """Free the lent memory that no tensor has any longer."""
        for address, (number, memory) in [*self._allocated.items()]:
            if isinstance(memory, Lent) and memory.is_over:
                del self._allocated[address]
                memory.free()
                self._lent -= 1
                for peer in self._peers.values():
                    if number in peer.handed:
                        peer.handed.discard(number)
                        peer.write(frame(OBJECT, _FREED + self._suffix, pickle.dumps(number)))

    def is_shared(self, vector: torch.Tensor) -> bool:
        """Return whether peers can read slices of a vector in place."""
        address = vector.untyped_storage().data_ptr()
        _, found = self._allocated.get(address, (0, None))
        if isinstance(found, Lent) and found.is_over:  # another tensor has its address now
            self._free_lent()
            return False
        return found is not None and found.dtype == vector.dtype and vector.is_contiguous()

    @override
    def _new_vector(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return self._owned.new(numel, dtype)

    @override
    def new_memory(self, nbytes: int) -> torch.Tensor:
        return self._owned.new(nbytes // 4, torch.float32)

    @override
    def handle(self, vector: Any) -> bytes:
        return vector.handle() if isinstance(vector, Lent) else self._owned.handle(vector)

    @override
    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        self.check_group()
        tag += self._suffix
        if not isinstance(value, torch.Tensor):
            return super()._send(value, dst, tag, n, sent)
        nbytes = value.nbytes
        if nbytes <= _IN_PIPE:
            self._peers[dst].write(vector_frame(tag, as_vector(value), n, sent))
            return _DELIVERED, nbytes
        if fits(value, nbytes) and value.is_contiguous() and self._peers[dst].send_copy(value, tag, n, sent, 0.0):
            return _DELIVERED, nbytes
        if self.is_shared(value):
            work, nbytes = super()._send(value, dst, tag, n, sent)
            self._unread.append(work)
            return work, nbytes
        buffer = self.borrow(value.numel(), value.dtype)
        copy = buffer[: value.numel()]
        copy.copy_(value.detach().reshape(-1))
        work, nbytes = super()._send(copy, dst, tag, n, sent)
        self.give_back(buffer, [work])
        return _DELIVERED, nbytes

    def settle(self) -> None:
        """Wait until peers have read what they read in place: the caller may change it. Raises WaitTimeout.

        Also wait until they have read most copies, of which there would be ever more ahead of a slow peer.
        """
        for work in self._unread:
            work.wait()
        self._unread.clear()
        while (unread := self._buffers.overdue()) is not None:
            unread.wait()

    def borrow(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return at least `numel` elements that peers can read in place, of any values."""
        buffer = self._buffers.take(numel, dtype)
        if buffer is None and self._buffers.busy:
            self.look()  # for releases of peers from which this rank receives nothing, as in a ring
            buffer = self._buffers.take(numel, dtype)
        return self.allocate(room(numel), dtype) if buffer is None else buffer

    def give_back(self, buffer: torch.Tensor, works: Sequence[Work]) -> None:
        """Let a borrowed buffer be used again when these messages of it have been read."""
        self._buffers.busy.append((works, buffer))

    def flush(self, dst: int) -> bool:
        """Write what the pipe to a peer takes. Return whether it has taken all, and peers have read most copies."""
        peer = self._peers[dst]
        peer.flush()
        return not peer.backlog and self._buffers.overdue() is None

    @override
    def close(self) -> None:
        self._closes = True
        super().close()
        if not self._shared_state.failure:  # after which a peer may still read
            self._free_lent()
        for _, memory in self._allocated.values():
            if isinstance(memory, Lent):
                memory.close()
        self._allocated.clear()
        self._owned.close()


@lru_cache(1000)
def _short(words: str) -> str:
    """Return words that fit behind a tag, and differ if the words do."""
    return words if len(words) <= _MOST else f"{words[:_MOST]}... {sha256(words.encode()).hexdigest()[:8]}"
