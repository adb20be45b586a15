"""The transport of one rank whose messages come in an order that a schedule decides, see `scheduler.py`.

Messages from one rank to another stay in order. It also finds memory that is changed while a message in it is on its
way or being read: not only where that changes the values read in this order, but where no chain of messages, and no
wait, puts the end of the reading before the change (vector clocks; Mattern, 1989, Virtual time and global states of
distributed systems).
"""

import pickle
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from greenlet import GreenletExit

from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.transports.base import NO_LIMIT, Transport
from gradwire.core.transports.inbox import ANY, Tags, named
from gradwire.core.transports.messages import Delivered, Message, Work, as_vector
from gradwire.core.transports.throttle import Rates
from gradwire.every_order.scheduler import ACCESS, LOST, NOTHING, SEND, TAKE, Choice, Question, Sent

if TYPE_CHECKING:
    from gradwire.every_order.runs import Run

_DIED = "it died"


class Ordered(Transport):
    """`Transport` in an order that is decided. There is no time.

    `numbers` are those beside the messages that it has sent, with their destinations and tags. `clock` counts, by rank,
    the events that came before what this rank does now. `unread` are the messages that it has sent, and does not know
    to have been read; `races`: see `InPlace`. `waits_for`: a rank, and what, in words. What it runs: `strategy` and
    `replica`, the samples of each gradient that it has `computed`, the
    `error` with which it failed, whether it has `ended`.
    """

    strategy: Strategy
    replica: Replica
    error: Exception | None = None
    ended = False

    def __init__(self, run: "Run", rank: int, world_size: int, recorder: Recorder) -> None:
        self.run = run
        super().__init__(rank, world_size, torch.device("cpu"), NO_LIMIT, recorder)
        self.clock = [0] * world_size
        self.waits_for: tuple[int | None, str] = None, ""
        self.numbers: list[tuple[int, str, float]] = []
        self.computed: list[list[int]] = []
        self.unread: list[InPlace] = []
        self.races: list[str] = []
        self._newest = [0] * world_size  # by rank, the number of the last message that was taken

    @property
    def rates(self) -> Rates:
        return Rates(1.0, 1.0)  # any will do

    def now(self) -> float:
        """Return how many messages have been sent, and accesses made to shared vectors."""
        return float(len(self.run.sent) + self.run.accesses)

    def sleep(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._closed = True

    def _progress(self, src: int, seconds: float) -> None:
        pass  # sent messages are in the inbox

    # Memory

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        vector = torch.zeros(numel, dtype=dtype)
        if numel:
            self._allocated[vector.untyped_storage().data_ptr()] = vector
        return vector

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        return self.run.shared.setdefault(name, torch.zeros(numel, dtype=dtype))

    def is_shared(self, vector: torch.Tensor) -> bool:
        """Whether a vector lies in shared memory."""
        pointer = vector.untyped_storage().data_ptr()
        return any(shared.untyped_storage().data_ptr() == pointer for shared in self.run.shared.values())

    def access(self, does: str) -> None:
        """Let others access shared vectors before this rank does what `does` says."""
        self.run.choose(self.rank, Question(lambda: [(ACCESS, -1, does)]))

    def read(self, *arguments: Any) -> int:
        self.access("reads a shared vector")
        return super().read(*arguments)

    def check_memory(self) -> None:
        """Note memory that was changed before it was read, as far as this rank knows."""
        self.unread = [send for send in self.unread if send.check()]

    # Messages

    def isend(self, value: Any, dst: int, tag: str, n: float = 0) -> Work:
        """Send, unless the rank dies here, or learns that the other one is dead."""
        run = self.run
        if run.dies == (self.rank, len(self.numbers) + 1):
            run.dead = self.rank
            for rank in run.ranks:
                run.sent.append(Sent(self.rank, rank.rank, "", tuple(self.clock)))
                rank.wake(self.rank)
            raise GreenletExit
        if dst == run.dead and dst not in self.inbox.gone:
            what = f"to rank {dst}, which is dead"
            choices: list[Choice] = [(SEND, dst, f"sends {tag!r} {what}"), (LOST, dst, f"cannot send {tag!r} {what}")]
            if run.choose(self.rank, Question(lambda: choices, tags=()))[0] == LOST:
                self._lose(dst, _DIED)
        return super().isend(value, dst, tag, n)

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        self.check_memory()
        run, receiver = self.run, self.run.ranks[dst]
        work: Work = Delivered()
        if isinstance(value, torch.Tensor):
            vector = as_vector(value)
            message = Message(self.rank, tag, vector, None, vector.nbytes, n)
            if value.is_contiguous() and value.untyped_storage().data_ptr() in self._allocated:
                work = on_its_way = InPlace(self, receiver, message, vector)
                self.unread.append(on_its_way)
            else:
                message.tensor = vector.clone()
        else:
            payload = b"" if value is None else pickle.dumps(value)
            message = Message(self.rank, tag, None, payload, len(payload), n)
        receiver.inbox.put(message, len(run.sent))
        run.sent.append(Sent(self.rank, dst, tag, self.tick()))
        self.numbers.append((dst, tag, n))
        receiver.wake(self.rank)
        if run.dies and run.dies[0] == dst:
            run.wake(self)
            run.suspend()
        return work, message.nbytes

    def recv(self, src: int, tag: Tags, timeout: float | None = None) -> Any:
        self.check_memory()
        limited = timeout is not None and timeout < NO_LIMIT
        if src == ANY or limited:
            tags = (tag,) if isinstance(tag, str) else tag
            self.waits_for = None, f"{named(tag)} from {'anybody' if src == ANY else f'rank {src}'}"
            question = Question(partial(self._choices, src, tags, limited), src, tags)
            kind, peer, _ = self.run.choose(self.rank, question)
            if kind == LOST:
                self._lose(peer, _DIED)
                self.inbox.check(src, tag)
            if kind == NOTHING:
                if not timeout:
                    return None
                raise self.inbox.overdue(named(tag), src, timeout)
            if src == ANY and timeout != 0:
                self.inbox.arrivals.append(peer)
            src = peer
        message = super().recv(src, tag)
        self._newest[src] = max(self._newest[src], number := int(message.order[0]))
        self.learn(self.run.sent[number].clock)
        return message

    def _choices(self, src: int, tags: tuple[str, ...], limited: bool) -> list[Choice]:
        """Return the possible results of a receive: the first message of each sender; with a limit, none.

        A message is there if the receiver has taken one that the same rank sent later. A death is learned of when all
        has been taken that the dead rank had sent.
        """
        first: dict[int, Message] = {}
        for (peer, tag), queue in self.inbox.queues.items():
            if queue and tag in tags and src in (peer, ANY):
                first[peer] = min(first.get(peer, queue[0]), queue[0], key=lambda message: message.order)
        found: list[Choice] = [
            (TAKE, src, f"takes {message.tag!r} of rank {src}") for src, message in sorted(first.items())
        ]
        dead, inbox = self.run.dead, self.inbox
        if dead is not None and src in (dead, ANY) and dead not in first and (inbox.news or dead not in inbox.gone):
            found.append((LOST, dead, f"learns that rank {dead} is dead"))
        if limited and not any(message.order[0] < self._newest[peer] for peer, message in first.items()):
            found.append((NOTHING, -1, f"finds no {named(tags)}"))
        return found

    def _receive(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        while (message := self.inbox.pop(src, tag)) is None:
            if src == self.run.dead:
                self._lose(src, _DIED)
            self.inbox.check(src, tag)
            self.wait_for(src, f"{named(tag)} from")
        return message

    def wait_for(self, rank: int, what: str) -> None:
        """Suspend this rank until that one has done something for it."""
        self.waits_for = rank, f"{what} rank {rank}"
        self.run.suspend()

    def wake(self, rank: int) -> None:
        """Let this rank continue, if it waits for that one."""
        if self.waits_for[0] == rank:
            self.waits_for = None, ""
            self.run.wake(self)

    def learn(self, clock: Sequence[int]) -> None:
        """Order the events before an event of another rank before this rank's next events."""
        self.clock = [max(both) for both in zip(self.clock, clock, strict=True)]

    def tick(self) -> tuple[int, ...]:
        """Count one more event, and return the clock."""
        self.clock[self.rank] += 1
        return tuple(self.clock)


class InPlace(Work):
    """A message that its receiver reads in the sender's memory.

    If that changes before the sender can know that it has been read, this is noted among the `races` of the sender.
    """

    def __init__(self, sender: Ordered, receiver: Ordered, message: Message, vector: torch.Tensor) -> None:
        self._sender, self._receiver, self._message = sender, receiver, message
        self._vector, self._was = vector, vector.clone()
        self._read: tuple[int, ...] | None = None  # the receiver's clock when it had read it, the sender's if copied
        self._copy_read: tuple[int, ...] | None = None  # the receiver's when it had read the copy
        message._give_back = self._release
        self.what = f"{message.tag!r} that rank {sender.rank} has sent to rank {receiver.rank}"

    def _release(self) -> None:
        """Note that the receiver reads it no more."""
        if not self._sender.run.over:
            self._read = self._receiver.tick()
            self._sender.wake(self._receiver.rank)

    def _release_copy(self) -> None:
        self._copy_read = self._receiver.tick()

    @property
    def is_known(self) -> bool:
        """Whether its sender knows that it has been read, or its receiver is dead."""
        k = self._receiver.rank
        return k == self._sender.run.dead or (self._read is not None and self._sender.clock[k] >= self._read[k])

    def check(self) -> bool:
        """Note it if the memory has been changed too early; return whether it may still be."""
        if self.is_known:
            return False
        if not torch.equal(self._vector, self._was):
            self._sender.races.append(f"{self.what} was changed before rank {self._sender.rank} could know it was read")
            self._was = self._vector.clone()
        return True

    @property
    def done(self) -> bool:
        """Whether it is found read: a read message may be known as read, or not yet."""
        sender, k = self._sender, self._receiver.rank
        sender.check_memory()
        choices: list[Choice] = [(TAKE, k, f"finds {self.what} read"), (NOTHING, -1, f"finds {self.what} not read yet")]
        question = Question(lambda: choices[not self._read : 2 - self.is_known])
        return sender.run.choose(sender.rank, question)[0] == TAKE

    def wait(self) -> None:
        """Wait until it is read. A message not taken yet is copied, so that the wait ends: see `holds`."""
        sender, message = self._sender, self._message
        sender.check_memory()
        if self._read is None and message._receiver is None:
            message.tensor, message._give_back = self._was, self._release_copy
            self._read = sender.tick()
            sender.run.copied.append(self)
        while self._read is None and not self.is_known:
            sender.wait_for(self._receiver.rank, f"the release of {message.tag!r} by")
        sender.learn(self._read or sender.clock)
        sender.check_memory()

    def holds(self, other: "InPlace") -> bool:
        """Whether this wait, if it had held until the message was read, would have held until that other one ended."""
        k = other._sender.rank
        return bool(self._copy_read and other._read and self._copy_read[k] >= other._read[k])
