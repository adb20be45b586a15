"""Ranks in virtual time: the messages of `Transport` over a network of numbers (`network.py`, `world.py`).

What lies in an allocated vector is not copied: its receiver reads it where it is, as in shared memory. On a real
network it would have left with its last byte; so when the sender wants its memory back by then, what has not been
received yet is copied, and only what is being read is waited for.

No wait has a limit unless it is given one: when nothing can happen any more, that is a `Deadlock`, which says who waits
for what from whom.
"""

import math
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from greenlet import getcurrent

from records.errors import RunFailed
from records.recorder import Recorder
from transports.base import (
    ANY,
    CLOSED,
    NO_LIMIT,
    STEPS_TAKEN,
    Delivered,
    Message,
    PeerLost,
    PeerReturned,
    Tags,
    Transport,
    Work,
    as_vector,
    named,
)
from transports.link import Card
from virtual_time.world import World

DIED = "it died"
_LOOK_S = 1e-6  # what a look that finds nothing takes, so that who looks again and again lets others continue


class Killed(BaseException):
    """Raised in a rank that is to be dead from here on."""


class Deadlock(RunFailed):
    """Every rank waits for another."""


class Ranks:
    """All ranks of a world, by number, and who has left it."""

    def __init__(self, world: World, world_size: int) -> None:
        self.world = world
        self.world_size = world_size
        self.transports: dict[int, Simulated] = {}
        self.seconds: Callable[[int, str, float], float] = lambda rank, phase, part: 0.0
        self.gone: list[tuple[int, str, bool]] = []  # in order: the rank, why, and whether it has died
        self.ever_gone: set[int] = set()
        self.waiting: dict[int, dict[int, Simulated]] = {}  # who waits, by the rank (or ANY) that they wait for
        self.returning: set[int] = set()  # who will be started again after its death
        self.lives = [0] * world_size  # how often each was started again
        self.hosts: set[int] = set()  # who may let one in that was started again
        self.after_death: Callable[[int], None] = lambda rank: None

    def leave(self, rank: int, why: str, died: bool) -> None:
        """Note that a rank is gone, and what it has sent has arrived; who waits for it is told."""
        self.gone.append((rank, why, died))
        self.ever_gone.add(rank)
        for transport in [*self.waiting.get(rank, {}).values(), *self.waiting.get(ANY, {}).values()]:
            transport.wake(self.world.time)
        if died:
            self.after_death(rank)

    def describe_waits(self) -> str:
        """Return in one line who waits for what from whom."""
        waits = [f"rank {t.rank} waits for {what}" for t in self.transports.values() if (what := t.waits_for)]
        more = f" and {len(waits) - 8} more" if len(waits) > 8 else ""
        return f"deadlock after {self.world.time:.6g} virtual s: {'; '.join(waits[:8])}{more}"


class Simulated(Transport):
    """`Transport` in virtual time; made in the coroutine that is the rank."""

    def __init__(self, ranks: Ranks, rank: int, device: torch.device, recorder: Recorder, rejoined: bool) -> None:
        self.clock = ranks.world.time
        super().__init__(rank, ranks.world_size, device, NO_LIMIT, recorder)
        self.ranks, self.world, self.network = ranks, ranks.world, ranks.world.network
        self.coroutine = getcurrent()
        self.rejoined = rejoined
        self.dies_at = math.inf
        self._why_gone = ""  # "": it is here
        self._on_the_way = 0  # messages that it has sent
        self.recorder.time_passes = self._compute
        # What it waits for: the rank, and the tags, or that this rank releases a message with this tag.
        self._wanted: tuple[int, Tags, str | None] | None = None
        self._departures = len(ranks.gone)  # that this rank knows of
        self._allocated: dict[int, torch.Tensor] = {}  # by the address of its memory, which nothing else gets
        self.bytes_allocated = 0
        for peer, why, _ in ranks.gone:
            self._lose(peer, why, died=False)
        if rejoined:
            for peer in set(self.peers) - ranks.hosts:
                self._lose(peer, f"rank {rank} was started again, and talks to others only", died=False)
        ranks.transports[rank] = self

    # Time

    def now(self) -> float:
        """See Transport: this rank's own clock."""
        return self.clock

    def sleep(self, seconds: float) -> None:
        """See Transport."""
        self.clock += max(0.0, seconds)

    def cpu_seconds(self) -> float:
        """See Transport: no time passes but that of whole phases."""
        return 0.0

    @contextmanager
    def while_busy(self, tell: Callable[[], None]) -> Iterator[None]:
        """See Transport: nobody needs to be told, for no wait has a limit."""
        yield

    def _compute(self, phase: str, part: float) -> None:
        """Let the time of a phase pass, at its end."""
        self.clock += self.ranks.seconds(self.rank, phase, part)

    # Memory

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """See Transport."""
        vector = torch.zeros(numel, dtype=dtype, device=self.device)
        self._allocated[vector.untyped_storage().data_ptr()] = vector  # on the meta device all have the same, 0
        self.bytes_allocated += vector.nbytes
        return vector

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """Raise RuntimeError: the ranks are machines of their own."""
        raise RuntimeError("ranks in virtual time share no memory")

    # Coming and going

    def close(self) -> None:
        """See Transport."""
        if not self._closed:
            self._closed = True
            self.world.at(self.clock, partial(self._leave, CLOSED))

    def die(self) -> None:
        """Be dead from now on: what was sent is still delivered, nothing else is done."""
        if self._why_gone:
            return
        self._closed = True
        self.clock = self.dies_at = max(self.clock, self.world.time)
        self._waits_no_more()
        if not self.coroutine.dead:
            self.world.at(self.world.time, self.coroutine)
        self._leave(DIED)

    def _leave(self, why: str) -> None:
        if self._why_gone:
            return
        self._why_gone = why
        if not self._on_the_way:
            self.ranks.leave(self.rank, why, why == DIED)

    def _arrived(self) -> None:
        """Note that a message of this rank has arrived."""
        self._on_the_way -= 1
        if self._why_gone and not self._on_the_way:
            self.ranks.leave(self.rank, self._why_gone, self._why_gone == DIED)

    def returned(self, peer: int) -> None:
        """Hear that a dead peer was started again."""
        self._hear(peer)
        self._news.append(PeerReturned(peer))
        self.wake(self.world.time)

    def admit(self, peer: int) -> None:
        """See Transport."""
        self._gone.pop(peer, None)
        self._news = deque(news for news in self._news if news.rank != peer)
        for key in [key for key in self._inbox if key[0] == peer]:
            del self._inbox[key]

    def may_return(self) -> bool:
        """See Transport."""
        return any(not self.ranks.transports[rank].rejoined for rank in self.ranks.returning)

    def is_gone(self, peer: int) -> bool:
        """See Transport."""
        self._hear(peer)
        return super().is_gone(peer)

    def _hear(self, about: int) -> None:
        """Take note of who has left, if it concerns a certain rank, or ANY."""
        gone = self.ranks.gone
        while (about == ANY or about in self.ranks.ever_gone) and self._departures < len(gone):
            peer, why, died = gone[self._departures]
            self._departures += 1
            if peer != self.rank:
                self._lose(peer, why, died)

    # Sending

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        self._check_alive()
        self._hear(dst)
        if dst in self._gone:
            raise PeerLost(dst, self._gone[dst])
        if isinstance(value, torch.Tensor):
            in_place = value.is_contiguous() and value.untyped_storage().data_ptr() in self._allocated
            vector = value if in_place and value.dim() == 1 else as_vector(value)
            if not in_place:
                vector = vector.clone()
            nbytes = value.nbytes
            message = Message(self.rank, tag, vector, None, nbytes, n)
        else:
            in_place = False
            payload = b"" if value is None else pickle.dumps(value)
            nbytes = len(payload)
            message = Message(self.rank, tag, None, payload, nbytes, n)
        message.order = (sent, 0)
        cards = self.network.path(self.rank, dst)
        start, end = cards[0].take(nbytes, self.clock, self.clock)
        self._on_the_way += 1
        receiver = (dst, self.ranks.lives[dst])
        if start > self.world.time:
            self.world.at(start, partial(self._pass, message, receiver, cards, 1, start, end))
        else:
            self._pass(message, receiver, cards, 1, start, end)
        if not in_place:
            return Delivered(), nbytes
        way = _InPlace(self, message, dst, end)
        message._give_back = way.release
        return way, nbytes

    def _pass(
        self, message: Message, receiver: tuple[int, int], cards: list[Card], i: int, first: float, last: float
    ) -> None:
        """Let a message, whose first byte is at `cards[i]` now, pass it and those behind it."""
        while i < len(cards):
            start, last = cards[i].take(message.nbytes, first, last)
            i += 1
            if start > first and i < len(cards):
                self.world.at(start, partial(self._pass, message, receiver, cards, i, start, last))
                return
            first = start
        self.world.at(last + self.network.latency, partial(self._deliver, message, *receiver))

    def _deliver(self, message: Message, dst: int, life: int) -> None:
        if self.ranks.lives[dst] == life:  # else it was sent to one that has died since
            self.ranks.transports[dst].take_in(message)
        self._arrived()

    def _check_alive(self) -> None:
        if self.clock >= self.dies_at:
            raise Killed

    # Receiving

    def take_in(self, message: Message) -> None:
        """Put a message that has arrived into the inbox."""
        if self._closed:
            return
        self._arrivals += 1
        message.order = (message.order[0], self._arrivals)
        key = (message.src, message.tag)
        queue = self._inbox.get(key)
        if queue is None:
            queue = self._inbox[key] = deque()
        queue.append(message)
        if self._wanted:
            src, tags, _ = self._wanted
            of_these = message.tag in (tags, STEPS_TAKEN) or (type(tags) is tuple and message.tag in tags)
            if of_these and (src == message.src or src == ANY):
                self.wake(self.world.time)

    def wake(self, at: float) -> None:
        """Have this rank look again, if it waits."""
        if self._wanted:
            self._waits_no_more()
            self.clock = max(self.clock, at)
            self.world.at(self.clock, self.coroutine)

    def _waits_no_more(self) -> None:
        if self._wanted:
            self.ranks.waiting[self._wanted[0]].pop(self.rank, None)
            self._wanted = None

    def wait_for(self, src: int, tags: Tags, released: str | None = None) -> None:
        """Return when something of this kind has arrived, or a message is `released`, or somebody has gone."""
        self._wanted = (src, tags, released)
        waiting = self.ranks.waiting.get(src)
        if waiting is None:
            waiting = self.ranks.waiting[src] = {}
        waiting[self.rank] = self
        self.world.wait()
        self._check_alive()

    @property
    def waits_for(self) -> str:
        """What it waits for, for people; empty if it does not wait."""
        if self._wanted is None:
            return ""
        src, tags, released = self._wanted
        if released is not None:
            return f"the release of {released!r} by rank {src}"
        return f"{named(tags)} from {'anybody' if src == ANY else f'rank {src}'}"

    def _look(self, src: int) -> bool:
        if src == ANY:  # what a single rank has sent keeps its order: there is nothing to choose
            self._catch_up()
        return src == ANY

    def _catch_up(self) -> None:
        """Let everything happen that does until this rank's time."""
        self.world.turn(self.clock)
        self._check_alive()

    def _progress(self, src: int, seconds: float) -> None:
        self.clock += seconds
        self._catch_up()

    def _receive(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        limit = self.timeout if timeout is None else timeout
        limited, deadline = limit < NO_LIMIT, self.clock + limit
        if limited and limit:
            self.world.at(deadline, lambda: self.wake(deadline))
        if limited or src == ANY:
            self._catch_up()
        while (message := self._pop(src, tag)) is None:
            self._hear(src)
            self._raise_if_gone(src, tag)
            self._raise_if_ended(src, tag)
            if timeout == 0:
                self.clock += _LOOK_S
                return None
            if limited and self.clock >= deadline:
                raise self._overdue(named(tag), src, limit)
            self.wait_for(src, tag)
        return message


class _InPlace(Work):
    """A message that is read in its sender's memory, at least until its last byte has `left`."""

    def __init__(self, sender: Simulated, message: Message, dst: int, left: float) -> None:
        self._sender, self._dst, self._left = sender, dst, left
        self._message: Message | None = message  # until it is released: there may be very many
        self._read_from = self._read_until = math.inf  # in virtual time; known when its receiver has released it

    def release(self) -> None:
        """Note that the receiver reads it no more."""
        sender = self._sender
        if self._message is not None:
            self._read_from = self._message._t0
            self._message = None
        self._read_until = sender.ranks.transports[self._dst].clock
        if sender._wanted and sender._wanted[2] is not None:
            sender.wake(self._read_until)

    @property
    def done(self) -> bool:
        """See Work."""
        return self._sender.clock >= self._left and self._is_free()

    def wait(self) -> None:
        """See Work."""
        sender = self._sender
        t0 = sender.clock
        sender.clock = max(t0, self._left)
        while not self._is_free():
            if self._message is None:
                sender.clock = self._read_until
            else:
                sender.wait_for(self._dst, (), self._message.tag)
        if sender.clock > t0:
            sender.recorder.add("wait", t0, sender.clock, peer=self._dst, tag="release")

    def _is_free(self) -> bool:
        """Whether the receiver is not reading it now; what it has not received yet is given a copy."""
        sender, message = self._sender, self._message
        if self._read_until <= sender.clock:
            return True
        sender._catch_up()  # who is to receive it by now has received it
        if message is None or self._read_until < math.inf:
            return self._read_until <= sender.clock or self._read_from > sender.clock
        if message._receiver is None and message.tensor is not None:
            message.tensor = message.tensor.clone()
            message._give_back = None
            self._message, self._read_until = None, sender.clock
            return True
        return sender.is_gone(self._dst)
