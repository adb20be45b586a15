"""The ranks of a world in virtual time: the clock of each, which rank waits for which, and which have left."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import torch
from greenlet import getcurrent
from typing_extensions import override

from gradwire.core.records.errors import RunFailed
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import CLOSED, NO_LIMIT, Transport
from gradwire.core.transports.inbox import ANY, STEPS_TAKEN, Tags, named
from gradwire.core.transports.messages import Message, PeerReturned
from gradwire.core.transports.throttle import Rates
from gradwire.virtual_time.handling import Handling
from gradwire.virtual_time.shares import shares_of
from gradwire.virtual_time.sharing import Cores
from gradwire.virtual_time.world import World

DIED = "it died"


class Killed(BaseException):
    """Raised in a rank that is to be dead from here on."""


class Deadlock(RunFailed):
    """Every rank waits for another."""


class Ranks:
    """All ranks of a world, by number, and those that have left it."""

    def __init__(self, world: World, world_size: int) -> None:
        self.world = world
        self.world_size = world_size
        self.transports: dict[int, SimulatedRank] = {}
        self.seconds: Callable[[int, str, float], float] = lambda rank, phase, part: 0.0
        self.cores: Cores | None = None  # None: each rank has a core of its own
        self.handling: Handling | None = None  # None: messages take nothing of a core
        self.gone: list[tuple[int, str, bool]] = []  # in order: the rank, why, and whether it has died
        self.ever_gone: set[int] = set()
        self.waiters: defaultdict[int, list[SimulatedRank]] = defaultdict(list)  # those for a rank, or ANY
        self.waits = count()
        self.returning: set[int] = set()  # ranks that will be started again after their death
        self.lives = [0] * world_size  # how often each was started again
        self.hosts: set[int] = set()  # ranks that may admit a restarted one
        self.after_death: Callable[[int], None] = lambda rank: None

    def leave(self, rank: int, why: str, died: bool) -> None:
        """Note that a rank is gone, and its messages have arrived; wake the ranks that wait for it."""
        self.gone.append((rank, why, died))
        self.ever_gone.add(rank)
        for src in (rank, ANY):
            waiting = [waiter for waiter in self.waiters[src] if waiter._wanted and waiter._wanted[0] == src]
            for transport in sorted(waiting, key=lambda waiter: waiter._since):
                transport.wake(self.world.time)
        if died:
            self.after_death(rank)

    def describe_waits(self) -> str:
        """Return one line that names each rank that waits, for what, and from which rank."""
        waits = [f"rank {t.rank} waits for {what}" for t in self.transports.values() if (what := t.waits_for)]
        more = f" and {len(waits) - 8} more" if len(waits) > 8 else ""
        return f"deadlock after {self.world.time:.6g} virtual s: {'; '.join(waits[:8])}{more}"


class SimulatedRank(Transport):
    """One of the ranks: a coroutine with a clock of its own, its waits, and its end."""

    def __init__(self, ranks: Ranks, rank: int, device: torch.device, recorder: Recorder, rejoined: bool) -> None:
        self.clock = ranks.world.time
        super().__init__(rank, ranks.world_size, device, NO_LIMIT, recorder)
        self.ranks, self.world, self.network = ranks, ranks.world, ranks.world.network
        self.coroutine = getcurrent()
        self.rejoined = rejoined
        self.dies_at = math.inf
        self._why_gone = ""  # "": it is here
        self.on_the_way = 0  # messages that it has sent
        self._works = False
        self.recorder.time_passes = lambda phase, part: self.work(ranks.seconds(rank, phase, part))  # at a phase's end
        self.recorder.shares_of = shares_of
        # Its wait: the rank, and the tags, or that this rank releases a message with this tag.
        self._wanted: tuple[int, Tags, str | None] | None = None
        self._since = 0  # the number of its last wait
        self._waited_for = set[int]()  # all that it ever waited for
        self._departures = len(ranks.gone)  # that this rank knows of
        self.bytes_allocated = 0
        for peer, why, _ in ranks.gone:
            self._lose(peer, why, died=False)
        if rejoined:
            for peer in set(self.peers) - ranks.hosts:
                self._lose(peer, f"rank {rank} was started again, and talks to others only", died=False)
        ranks.transports[rank] = self

    @property
    @override
    def rates(self) -> Rates | None:
        return None if self.ranks.cores else self.network.rates

    # Time

    def now(self) -> float:
        """See Transport: this rank's own clock."""
        return self.clock

    @override
    def sleep(self, seconds: float) -> None:
        self.clock += max(0.0, seconds)

    def cpu_seconds(self) -> float:
        """See Transport: only whole phases take time."""
        return 0.0

    @contextmanager
    def while_busy(self, tell: Callable[[], None]) -> Iterator[None]:
        """See Transport: no wait has a limit, so no peer needs a message."""
        yield

    def work(self, seconds: float) -> None:
        """Let the time pass in which this rank has a core for `seconds`."""
        if self.ranks.cores is None or not seconds:
            self.clock += seconds
            return
        self._works = True
        self.ranks.cores.compute(self.rank, seconds, self.clock, self._has_worked)
        while self._works:
            self.wait_for(self.rank, ())

    def _has_worked(self, at: float) -> None:
        self._works = False
        self.wake(at)

    # Coming and going

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.world.at(self.clock, partial(self._leave, CLOSED))

    def die(self) -> None:
        """Die: messages already sent are still delivered, and nothing else is done."""
        if self._why_gone:
            return
        self._closed = True
        self.clock = self.dies_at = max(self.clock, self.world.time)
        self._wanted = None
        if not self.coroutine.dead:
            self.world.at(self.world.time, self.coroutine)
        self._leave(DIED)

    def _leave(self, why: str) -> None:
        if self._why_gone:
            return
        self._why_gone = why
        self.arrived()

    def returned(self, peer: int) -> None:
        """Note that a dead peer was started again."""
        self._notice(peer)
        self.inbox.news.append(PeerReturned(peer))
        self.wake(self.world.time)

    @override
    def admit(self, peer: int) -> None:
        self.inbox.forget(peer)

    @override
    def may_return(self) -> bool:
        return any(not self.ranks.transports[rank].rejoined for rank in self.ranks.returning)

    @override
    def is_gone(self, peer: int) -> bool:
        self._notice(peer)
        return super().is_gone(peer)

    def _notice(self, about: int) -> None:
        """Note the ranks that have left, where a certain rank, or ANY, is waited for."""
        gone = self.ranks.gone
        while (about == ANY or about in self.ranks.ever_gone) and self._departures < len(gone):
            peer, why, died = gone[self._departures]
            self._departures += 1
            if peer != self.rank:
                self._lose(peer, why, died)

    def arrived(self) -> None:
        """Note that this rank has left, once all messages have arrived that it has sent."""
        if not self.on_the_way:
            self.ranks.leave(self.rank, self._why_gone, self._why_gone == DIED)

    # Waiting

    def receive_arrived(self, message: Message) -> None:
        """Put a message that has arrived into the inbox."""
        if self._closed:
            return
        self.inbox.put(message, message.order[0])
        if self._wanted:
            src, tags, _ = self._wanted
            of_these = message.tag in (tags, STEPS_TAKEN) or (type(tags) is tuple and message.tag in tags)
            if of_these and (src == message.src or src == ANY):
                self.wake(self.world.time)

    def wake(self, at: float) -> None:
        """Wake this rank, if it waits, to look again."""
        if self._wanted:
            self._wanted = None
            if at > self.clock:
                self.clock = at
            self.world.at(self.clock, self.coroutine)

    def wait_for(self, src: int, tags: Tags, released: str | None = None) -> None:
        """Return when something of this kind has arrived, or a message is `released`, or somebody has gone."""
        self._wanted = (src, tags, released)
        self._since = next(self.ranks.waits)
        if src not in self._waited_for:
            self._waited_for.add(src)
            self.ranks.waiters[src].append(self)
        self.world.wait()
        if self.clock >= self.dies_at:
            raise Killed

    @property
    def waits_for(self) -> str:
        """Its wait, as text; empty if it does not wait."""
        if self._wanted is None:
            return ""
        src, tags, released = self._wanted
        if released is not None:
            return f"the release of {released!r} by rank {src}"
        return f"{named(tags)} from {'anybody' if src == ANY else f'rank {src}'}"

    def catch_up(self) -> None:
        """Run all events until this rank's time."""
        self.world.turn(self.clock)
        self._check_alive()

    def _check_alive(self) -> None:
        if self.clock >= self.dies_at:
            raise Killed
