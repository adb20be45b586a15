"""What carries the calls of ranks, and knows which belong together: a collective of a group, a message and its receive.

All of it is called on the hub.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from gradwire.backend.calls import Collective, Message
from gradwire.backend.collectives import Plan
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.timing import now
from gradwire.torch_scripts.calls import Pending
from gradwire.torch_scripts.replaced import replaced
from gradwire.torch_scripts.starter import Started
from gradwire.torch_scripts.threads import END_S, RankThread
from gradwire.virtual_time.ranks import Ranks
from gradwire.virtual_time.transport import Simulated
from gradwire.virtual_time.world import World

R = TypeVar("R", bound=RankThread)


@dataclass
class PendingCollective:
    """One collective of a group, with the ranks that have entered it, by rank of the world."""

    ranks: tuple[int, ...]
    entered: dict[int, Pending] = field(default_factory=dict)
    _transports: list[Simulated] = field(default_factory=list)

    def transports(self, world: World) -> list[Simulated]:
        """Return those of its ranks, in their order, in the world in which they meet."""
        if not self._transports:
            ranks, device = Ranks(world, len(self.ranks)), torch.device("cpu")
            for i in range(len(self.ranks)):
                self._transports.append(Simulated(ranks, i, device, Recorder(enabled=False), rejoined=False))
        return self._transports

    @property
    def missing(self) -> list[int]:
        """The ranks that have not entered."""
        return [rank for rank in self.ranks if rank not in self.entered]


class Engine(ABC, Generic[R]):
    """Some ranks, and their calls that have not been matched. `failure`: what ended them before their end."""

    def __init__(self, ranks: Sequence[R], plans: dict[str, Plan]) -> None:
        self.ranks, self._plans = list(ranks), plans
        self.starters: list[R] = []  # which have started processes that are ranks
        self.failure: RunFailed | None = None
        self.meetings: dict[tuple[str, int], PendingCollective] = {}
        self.sends: list[Pending] = []
        self.receives: list[Pending] = []
        self.started = Started()
        self.waiting: list[R] = []  # in `wait_until`
        for rank in ranks:
            rank.engine = self

    @abstractmethod
    def enter(self, pending: Pending) -> None:
        """Begin what a rank has called. Raises RunFailed."""

    @abstractmethod
    def wait(self, pending: Pending, limit_s: float | None = None) -> str:
        """Suspend the rank until a call of it has ended; return why it has not, after `limit_s`. Raises RunFailed."""

    @abstractmethod
    def look(self, pending: Pending) -> bool:
        """Return whether a call of the rank has ended, as far as that rank can know."""

    @abstractmethod
    def sleep(self, rank: R, seconds: float) -> None:
        """Let time pass for a rank, in which others run."""

    @abstractmethod
    def wait_until(self, rank: R, ready: Callable[[], bool], words: str, limit_s: float | None) -> bool:
        """Suspend a rank until `ready`, whenever ranks have changed something; return False: not within the limit.

        `words`: what the rank does with an object that processes share.
        """

    @abstractmethod
    def changed(self, rank: R) -> None:
        """Let ranks look whether what they wait for is ready: this rank has changed something."""

    @abstractmethod
    def stop(self) -> None:
        """Let nothing more happen."""

    # The ranks

    def run(self, run: Callable[[], None]) -> None:
        """Call `run`, which runs every rank, and then end those that are left; inside of `ranks_alone`."""
        with replaced(len(self.ranks)):
            try:
                run()
            finally:
                until = now() + END_S
                for rank in [*self.ranks, *self.starters]:
                    rank.kill(until)

    def run_rank(self, rank: RankThread) -> None:
        """Let a rank run until it ends, and do what it asks for."""
        try:
            while (request := rank.resume()) is not None:
                rank.answer = request()
            rank.is_over = True
        except RunFailed as error:
            self.failure = self.failure or error
            self.stop()

    def deadlock(self) -> str:
        """Return the ranks that wait, with their calls and lines; "": no rank waits."""
        waits = [self.reason(rank.waits_for) for rank in self.ranks if rank.waits_for and not rank.is_over]
        in_objects = ((f"rank {rank.rank}", rank) for rank in self.ranks)
        for name, rank in (*in_objects, *(("what started them", rank) for rank in self.starters[:1])):
            waits += [f"{name} waits in {rank.waits_in} at {rank.at}"] if rank.waits_in and not rank.is_over else []
        ended = [str(rank.rank) for rank in self.ranks if rank.is_over]
        return "; ".join([*waits, *([f"ended: rank {', '.join(ended)}"] if ended else [])]) if waits else ""

    def reason(self, pending: Pending) -> str:
        """Return the line where a rank waits, and the ranks it waits for."""
        call, text = pending.call, f"rank {pending.rank} waits in {pending.call.words} at {pending.thread.at}"
        meeting = self.meetings.get((call.group, call.number)) if isinstance(call, Collective) else None
        return text + (f" for rank {', '.join(map(str, meeting.missing))}" if meeting else "")

    # Their calls

    def meet(self, pending: Pending, call: Collective) -> PendingCollective:
        """Return the collective that a rank enters now. Raises RunFailed if others have entered another one."""
        meeting = self.meetings.setdefault((call.group, call.number), PendingCollective(call.ranks))
        for first in list(meeting.entered.values())[:1]:
            if first.call.words != call.words:
                raise _mismatch(first, pending)
        meeting.entered[pending.rank] = pending
        if not meeting.missing:
            del self.meetings[call.group, call.number]
        return meeting

    def sends_for(self, receive: Pending) -> list[Pending]:
        """Return the messages that a receive may take: of each rank the first."""
        firsts: dict[int, Pending] = {}
        for send in self.sends:
            if send.fits(receive):
                firsts.setdefault(send.rank, send)
        return list(firsts.values())

    def pair(self, send: Pending, receive: Pending) -> tuple[Message, Message]:
        """Return a message and the receive that takes it now. Raises RunFailed if its tensor is of another kind."""
        self.sends.remove(send)
        self.receives.remove(receive)
        sent, wanted = send.message, receive.message
        if (sent.tensor.numel(), sent.tensor.dtype) != (wanted.tensor.numel(), wanted.tensor.dtype):
            raise _mismatch(send, receive)
        receive.source = send.rank
        return sent, wanted

    def unread(self) -> list[str]:
        """Return the messages that no rank has received, and the receives that found none, in words."""
        return [f"rank {left.rank}: {left.call.words} at {left.at}" for left in [*self.sends, *self.receives]]


def _mismatch(pending: Pending, other: Pending) -> RunFailed:
    texts = (f"rank {call.rank} is in {call.call.words} at {call.at}" for call in (other, pending))
    return RunFailed(f"mismatch: {', '.join(texts)}")
