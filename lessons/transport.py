"""What a student's function sends and receives by: a transport in the rank's process, which asks the judge for all.

The judge believes nothing that is said here but what was asked of it: messages are carried, and counted, in its own
process. What comes from here is JSON and raw bytes, so reading it runs no code.
"""

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from lessons.lab import name_dtype
from transports.base import ANY, Message, Work
from transports.messages import Delivered, as_vector

LARGEST = 2**26  # bytes of a message
MOST_SLEEP = 1_000_000  # virtual seconds
# What a received vector holds after its release: bytes that no computation gives, and that a result of them keeps.
_SPOILED = 0xFF  # in all bytes, that is a NaN whose bits are all set, the index -1, or 255
_ALL_BUT_SIGN = {torch.float32: (torch.int32, 2**31 - 1), torch.float64: (torch.int64, 2**63 - 1)}


class Judge:
    """The pipe to the judge: requests go out, and answers come back to those that have one."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def tell(self, what: str, payload: bytes | None = None, **header: Any) -> None:
        """Send a request, with bytes behind it if there are some."""
        header |= {"what": what, "payload": payload is not None}
        self._pipe.send_bytes(json.dumps(header).encode())
        if payload is not None:
            self._pipe.send_bytes(payload)

    def ask(self, what: str, **header: Any) -> Any:
        """Send a request and return the answer."""
        self.tell(what, **header)
        return self._pipe.recv()

    def hear(self) -> Any:
        """Return what the judge asks next; None when it is gone."""
        try:
            return self._pipe.recv()
        except EOFError:
            return None

    def tell_result(self, result: dict[str, torch.Tensor]) -> None:
        """Tell what this rank ends with."""
        vectors = {name: packed(vector) for name, vector in result.items()}
        header = [[name, dtype, len(data)] for name, (dtype, data) in vectors.items()]
        payload = b"".join(data for _, data in vectors.values())
        self.tell("result", payload, vectors=header)


def _bits(vector: torch.Tensor) -> torch.Tensor:
    return as_vector(vector).view(torch.uint8)


def packed(vector: torch.Tensor) -> tuple[str, bytes]:
    """Return a vector's dtype by name, and its bytes."""
    return name_dtype(vector.dtype), _bits(vector).numpy().tobytes()


def is_spoiled(vector: torch.Tensor) -> bool:
    """Whether an element is a NaN that came from a released vector: additions and multiplications keep its bits."""
    if vector.dtype not in _ALL_BUT_SIGN:
        return False
    integers, ones = _ALL_BUT_SIGN[vector.dtype]
    return bool(((vector.contiguous().view(integers) & ones) == ones).any())


class LabTransport:
    """What a student's function gets: `rank`, `world_size`, and the methods below, which are those of a `Transport`."""

    def __init__(self, judge: Judge, rank: int, world_size: int, carries_objects: bool = True) -> None:
        self.rank = rank
        self.world_size = world_size
        self.peers = [peer for peer in range(world_size) if peer != rank]
        self._judge = judge
        self._carries_objects = carries_objects
        self._memory: list[torch.Tensor] = []  # what was allocated
        self._pending: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what others may read, and what it was
        self._held: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # what this rank may read, likewise
        self._told: set[int] = set()  # of those that are pending, the ones that are known to be changed
        self._sent = 0

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a zeroed vector [numel] whose slices peers read in place."""
        vector = torch.zeros(numel, dtype=dtype)
        self._memory.append(vector)
        return vector

    def isend(self, value: Any, dst: int, tag: str, n: int = 0) -> Work:
        """Send a tensor (or None, or what JSON can carry), and the number `n` beside it, to rank `dst`; return at once.

        A slice of an allocated vector is not to be changed until the Work is done; any other tensor is copied first.
        """
        if not isinstance(dst, int):
            raise TypeError(f"isend(tensor, dst, tag): dst is a {type(dst).__name__}; expected a rank")
        if dst == self.rank or not 0 <= dst < self.world_size:
            raise ValueError(f"rank {self.rank} cannot send to rank {dst} in a world of {self.world_size}")
        if not isinstance(tag, str):
            raise TypeError(f"the tag of a message is a string, such as 'chunk', and not {tag!r}")
        if not (self._carries_objects or isinstance(value, torch.Tensor)):
            raise TypeError(f"isend(tensor, dst, tag) was given {_kind(value)}; expected a tensor")
        if isinstance(value, torch.Tensor) and value.nbytes > LARGEST:
            raise ValueError(f"isend was given {value.nbytes:,} bytes; here a message has {LARGEST:,} at most")
        self._tell_changes()
        self._sent += 1
        header: dict[str, Any] = {"dst": int(dst), "tag": tag, "n": int(n), "id": self._sent}
        if not isinstance(value, torch.Tensor):
            self._judge.tell("isend", object=value, **header)
            return Delivered()
        span = self._span(value)
        dtype, payload = packed(value)
        self._judge.tell("isend", payload, dtype=dtype, span=span, in_place=span is not None, **header)
        if span is None:
            return Delivered()
        self._pending[self._sent] = (value, _bits(value).clone())
        return _OnTheWay(self, self._sent)

    def recv(self, src: int, tag: str | tuple[str, ...]) -> Message:
        """Return the next message with `tag`, or one of several, of rank `src`, or of ANY; wait for it."""
        if not isinstance(src, int):
            raise TypeError(f"recv(src, tag): src is a {type(src).__name__}; expected a rank")
        if src != ANY and (src == self.rank or not 0 <= src < self.world_size):
            raise ValueError(f"rank {self.rank} cannot receive from rank {src} in a world of {self.world_size}")
        tags = tag if isinstance(tag, tuple) else (tag,)
        if not tags or not all(isinstance(one, str) for one in tags):
            raise TypeError(
                f"the tag of a message is a string, such as 'chunk', or several in a tuple, and not {tag!r}"
            )
        self._tell_changes()
        answer = self._judge.ask("recv", src=int(src), tag=tag)
        self._forget(answer["released"])
        key, vector = (answer["src"], answer["id"]), answer["vector"]
        if vector is not None:
            self._held[key] = vector, _bits(vector).clone()

        def give_back() -> None:
            self._tell_changes()
            self._held.pop(key, None)
            self._judge.tell("release", src=answer["src"], id=answer["id"])
            if vector is not None:
                _bits(vector).fill_(_SPOILED)  # its sender may write there from here on

        message = Message(answer["src"], answer["tag"], vector, answer["object"], answer["nbytes"], answer["n"],
                          give_back)  # fmt: skip
        message._receiver = self
        if vector is None:
            message.release()
        return message

    def sleep(self, seconds: float) -> None:
        """Do nothing for so many virtual seconds."""
        if not 0 <= seconds <= MOST_SLEEP:
            raise ValueError(f"sleep({seconds}): expected seconds from 0 to {MOST_SLEEP:,}")
        self._judge.tell("sleep", seconds=float(seconds))

    def wait_for(self, number: int) -> None:
        """Wait until a message has been read."""
        if number in self._pending:
            self._tell_changes()
            self._forget(self._judge.ask("wait", id=number)["released"])

    def is_read(self, number: int) -> bool:
        """Whether a message has been read, as far as this rank knows."""
        return number not in self._pending

    def close(self) -> None:
        """Tell of what was changed since the last message."""
        self._tell_changes()

    def _span(self, value: torch.Tensor) -> tuple[int, int, int] | None:
        """Return where a slice lies: the number of its vector, its first element, one past its last."""
        for i, vector in enumerate(self._memory):
            same = value.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
            if same and value.is_contiguous() and value.dtype == vector.dtype:
                start = int(value.storage_offset())
                return i, start, start + value.numel()
        return None

    def _tell_changes(self) -> None:
        """Tell whose memory was changed: of messages that may not have been read, and of those that are being read."""
        for number, (now, then) in self._pending.items():
            if number not in self._told and not torch.equal(_bits(now), then):
                self._told.add(number)
                dtype, payload = packed(now)
                self._judge.tell("changed", payload, dtype=dtype, id=number)
        for (src, number), (now, then) in self._held.items():
            if not torch.equal(_bits(now), then):
                self._judge.tell("wrote", src=src, id=number)

    def _forget(self, released: Sequence[int]) -> None:
        for number in released:
            self._pending.pop(number, None)

    def _note(self, message: Message, t0: float) -> None:
        """Record nothing: the judge does."""

    def _synchronize(self) -> None:
        """Wait for no device: there is none."""


def _kind(value: Any) -> str:
    if value is None:
        return "None, which is what functions that work in place return"
    return f"a {type(value).__name__}"


class _OnTheWay(Work):
    """A slice that is read where it is."""

    def __init__(self, transport: LabTransport, number: int) -> None:
        self._transport, self._number = transport, number

    @property
    def done(self) -> bool:
        """See Work."""
        return self._transport.is_read(self._number)

    def wait(self) -> None:
        """See Work."""
        self._transport.wait_for(self._number)
