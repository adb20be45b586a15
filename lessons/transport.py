"""The transport of a student's functions in virtual time: it notes every message, read and change."""

from typing import TYPE_CHECKING, Any

import torch

from lessons.lab import SPOILED, Fault, Sent
from transports.base import Message, Work
from transports.messages import Delivered, as_vector
from virtual_time.transport import Simulated

if TYPE_CHECKING:
    from lessons.judge import Game


def _bits(vector: torch.Tensor) -> torch.Tensor:
    return as_vector(vector).view(torch.uint8)


def _check_tags(tags: tuple[Any, ...]) -> None:
    if not tags or not all(isinstance(one, str) for one in tags):
        raise TypeError(f"the tag of a message is a string, such as 'chunk', or several in a tuple, and not {tags!r}")


class LabTransport:
    """What a student's function gets: `rank`, `world_size`, and the methods below, which are those of a `Transport`."""

    def __init__(self, game: "Game", simulated: Simulated) -> None:
        self.rank = simulated.rank
        self.world_size = simulated.world_size
        self.peers = [*simulated.peers]
        self._game, self._simulated = game, simulated
        self._memory: list[torch.Tensor] = []  # what was allocated
        self._pending: list[tuple[Sent, torch.Tensor, torch.Tensor]] = []  # what others may read, and what it was
        self._held: list[tuple[Sent, torch.Tensor, torch.Tensor]] = []  # what this rank may read, likewise

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a zeroed vector [numel] whose slices peers read in place."""
        self._memory.append(torch.zeros(numel, dtype=dtype))
        return self._memory[-1]

    def isend(self, value: Any, dst: int, tag: str, n: int = 0) -> Work:
        """Send a tensor or an object, and the number `n` beside it, to rank `dst`; return at once.

        A slice of an allocated vector is not to be changed until the Work is done; any other tensor is copied first.
        """
        if not isinstance(dst, int):
            raise TypeError(f"isend(tensor, dst, tag): dst is a {type(dst).__name__}; expected a rank")
        _check_tags((tag,))
        vector = as_vector(value.detach()).clone() if isinstance(value, torch.Tensor) else None
        if vector is None and not self._game.lab.carries_objects:
            given = f"a {type(value).__name__}"
            if value is None:
                given = "None, which is what functions that work in place return"
            raise TypeError(f"isend(tensor, dst, tag) was given {given}; expected a tensor")
        self.look()
        span, game, sent = None if vector is None else self._span(value), self._game, self._simulated.now()
        before = self._simulated.bytes_sent.total()
        self._simulated.isend(value if vector is None else vector, dst, tag, n=n)
        message = Sent(self.rank, len(game.run.of_rank(self.rank)) + 1, dst, tag, vector, span,
                       self._simulated.bytes_sent.total() - before, game.rounds[self.rank] + 1, sent,
                       number=next(game.numbers))  # fmt: skip
        game.run.sent.append(message)
        game.on_the_way[self.rank, dst, tag].append(message)
        if span is None:
            return Delivered()
        self._pending.append((message, value, _bits(value).clone()))
        return _OnTheWay(self, message)

    def recv(self, src: int, tag: str | tuple[str, ...]) -> Message:
        """Return the next message with `tag`, or one of several, of rank `src`, or of ANY; wait for it."""
        _check_tags(tag if isinstance(tag, tuple) else (tag,))
        self.look()
        received = self._simulated.recv(src, tag)
        sent = self._game.on_the_way[received.src, self.rank, received.tag].popleft()
        sent.arrived, sent.taken, vector = self._simulated.now(), next(self._game.numbers), received.tensor
        self._game.rounds[self.rank] = max(self._game.rounds[self.rank], sent.round)

        def give_back() -> None:
            self.look()
            self._held = [one for one in self._held if one[0] is not sent]
            sent.released = True
            sender = self._simulated.ranks.transports[sent.rank]
            assert isinstance(sender, Simulated)
            sender.wake(self._simulated.now())
            if vector is not None:
                _bits(vector).fill_(SPOILED)  # its sender may write there from here on

        message = Message(sent.rank, sent.tag, vector, received.object, received.nbytes, received.n, give_back)
        message._receiver = self
        received.release()
        if vector is None:
            message.release()
        else:
            self._held.append((sent, vector, _bits(vector).clone()))
        return message

    def sleep(self, seconds: float) -> None:
        """Do nothing for so many virtual seconds."""
        self._simulated.sleep(seconds)

    def wait_for(self, message: Sent) -> None:
        """Wait until a message has been read."""
        self.look()
        while not message.released:
            self._game.to_be_read[self.rank] = message
            self._simulated.wait_for(message.dst, (), message.tag)
        self._game.to_be_read.pop(self.rank, None)

    def _span(self, value: torch.Tensor) -> tuple[int, int, int] | None:
        """Return where a slice lies: the number of its vector, its first element, one past its last."""
        for i, vector in enumerate(self._memory):
            same = value.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
            if same and value.is_contiguous() and value.dtype == vector.dtype:
                start = int(value.storage_offset())
                return i, start, start + value.numel()
        return None

    def look(self) -> None:
        """Note changes of memory in use: of sent messages until their release, of received ones while they are held.

        Raises Fault for the latter.
        """
        self._pending = [one for one in self._pending if not one[0].released]
        for message, now, then in self._pending:
            if message.became is None and not torch.equal(_bits(now), then):
                self._game.note_change(message, now)
        for message, now, then in self._held:
            if message.span and not torch.equal(_bits(now), then):  # without one it is a copy, which nobody else reads
                raise Fault("damage", f"{self._game.run.case}: rank {self.rank} wrote into received.vector, which is "
                                      f"rank {message.rank}'s {self._game.label(message)}: write into a vector of your "
                                      "own")  # fmt: skip

    def _note(self, message: Message, t0: float) -> None:
        """Record nothing: the judge does."""

    def _synchronize(self) -> None:
        """Wait for no device: there is none."""


class _OnTheWay(Work):
    """A slice that is read where it is."""

    def __init__(self, transport: LabTransport, message: Sent) -> None:
        self._transport, self._message = transport, message

    @property
    def done(self) -> bool:
        """See Work."""
        return self._message.released

    def wait(self) -> None:
        """See Work."""
        self._transport.wait_for(self._message)
