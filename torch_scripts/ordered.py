"""The engine in every order: the scheduler of `every_order` takes the place of the clock.

It decides which message a receive from anybody takes, and whether `is_completed()` finds that a call has ended; nothing
else branches. A message that a receive names, and a collective, come in one way only. As with gloo, a send ends when
its receive is there. A look that finds nothing is repeated only after some rank has called something.
"""

import io
from collections.abc import Sequence
from functools import partial

import torch
from greenlet import greenlet

from every_order.scheduler import NOTHING, TAKE, Choice, Question, Scheduler, Sent
from records.recorder import Recorder
from torch_scripts.collectives import Plan
from torch_scripts.matching import Calls, Meeting
from torch_scripts.process_group import Collective, Message, Pending
from torch_scripts.threads import RankThread
from virtual_time.network import OneSwitch
from virtual_time.ranks import Ranks
from virtual_time.transport import Simulated
from virtual_time.world import World


class OrderedRank:
    """A rank of the script. `clock`: by rank, the calls that came before what it does now."""

    coroutine: greenlet
    thread: RankThread

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.clock = [0] * world_size
        self.waits_for: Pending | None = None
        self.looked: dict[int, int] = {}  # at which calls in vain, and how many there were by then of all ranks
        self.output = io.StringIO()
        self.parameters: dict[int, torch.Tensor] = {}
        self.is_suspended = self.is_over = False


class InOrders:
    """The calls of all ranks, in an order that the scheduler decides: see `process_group.Engine`."""

    def __init__(self, scheduler: Scheduler, ranks: Sequence[OrderedRank], plans: dict[str, Plan]) -> None:
        self.scheduler, self.ranks, self._plans = scheduler, ranks, plans
        self.calls = Calls()
        self._entered = 0

    def stop(self) -> None:
        """See Engine."""
        self.scheduler.failed = True

    def enter(self, pending: Pending) -> None:
        """See Engine."""
        rank, call = self.ranks[pending.rank], pending.call
        pending.at = rank.thread.at
        self._entered += 1
        rank.clock[rank.rank] += 1
        peers = call.ranks if isinstance(call, Collective) else () if call.peer is None else (call.peer,)
        for peer in peers:
            self.scheduler.sent.append(Sent(rank.rank, peer, _tag(pending), tuple(rank.clock)))
        if isinstance(call, Collective):
            if not (meeting := self.calls.meet(pending, call)).missing:
                self._complete(meeting)
        else:
            (self.calls.sends if call.is_sent else self.calls.receives).append(pending)
            self._deliver()

    def wait(self, pending: Pending) -> None:
        """See Engine. While a rank waits, what it receives from anybody may come, so that its sender can go on."""
        rank = self.ranks[pending.rank]
        rank.waits_for = pending
        while not pending.ended:
            if self._open_ones(rank):
                self._decide(pending, looks=False)
            else:
                rank.is_suspended = True
                self.scheduler.suspend()
        rank.waits_for = None

    def look(self, pending: Pending) -> bool:
        """See Engine."""
        rank = self.ranks[pending.rank]
        rank.waits_for = pending
        while (found := self._decide(pending, looks=True)) is None:
            pass
        rank.waits_for = None
        return found

    def _open_ones(self, rank: OrderedRank) -> list[Pending]:
        """Return the receives of a rank from anybody that may take a message next: of each tag the first."""
        firsts: dict[str, Pending] = {}
        for one in self.calls.receives:
            if one.rank == rank.rank and _from_anybody(one):
                firsts.setdefault(_tag(one), one)
        return list(firsts.values())

    def _decide(self, pending: Pending, looks: bool) -> bool | None:
        """Let it be decided whether a call has ended, or which message a receive from anybody takes (None)."""
        rank, at, words = self.ranks[pending.rank], pending.thread.at, pending.call.words
        messages: dict[Choice, tuple[Pending, Pending]] = {}

        def choices() -> list[Choice]:
            messages.clear()
            for one in () if pending.ended else self._open_ones(rank):
                for send in self.calls.sends_for(one):
                    which = f"rank {send.rank}" + one.call.words.partition("anybody")[2]  # the tag
                    messages[TAKE, send.rank, f"takes the message of {which} at {one.at}"] = send, one
            found = list(messages)
            if pending.ended:
                found.append((TAKE, -1, f"sees at {at} that its {words} has ended"))
            if looks and rank.looked.get(id(pending)) != self._entered:
                found.append((NOTHING, -1, f"sees at {at} that its {words} has not ended"))
            return found

        tags = None if looks else tuple(_tag(one) for one in self._open_ones(rank))
        picked = self.scheduler.choose(rank.rank, Question(choices, tags=tags))
        if picked in messages:
            self._pair(*messages[picked])
            return True if pending.ended else None
        if picked[0] == NOTHING:
            rank.looked[id(pending)] = self._entered
        return picked[0] == TAKE

    def _deliver(self) -> None:
        """Let the receives that name their sender have what is for them, if none from anybody is before them."""
        open_ones = set[tuple[int, str]]()
        for receive in list(self.calls.receives):
            if _from_anybody(receive):
                open_ones.add((receive.rank, _tag(receive)))
            elif (receive.rank, _tag(receive)) not in open_ones and (sends := self.calls.sends_for(receive)):
                self._pair(sends[0], receive)

    def _pair(self, send: Pending, receive: Pending) -> None:
        sent, wanted = self.calls.pair(send, receive)
        wanted.tensor.copy_(sent.tensor.view(wanted.tensor.shape))
        self._end([send, receive])
        self._deliver()

    def _complete(self, meeting: Meeting) -> None:
        """Do a collective that all have entered."""
        world = World(OneSwitch(len(meeting.ranks), 1.0, 0.0), compute=False)
        ranks = Ranks(world, len(meeting.ranks))
        for i, rank in enumerate(meeting.ranks):
            world.start(partial(self._take_part, ranks, i, meeting.entered[rank]))
        world.run()
        self._end(list(meeting.entered.values()))

    def _take_part(self, ranks: Ranks, i: int, pending: Pending) -> None:
        assert isinstance(pending.call, Collective)
        transport = Simulated(ranks, i, torch.device("cpu"), Recorder(enabled=False), rejoined=False)
        pending.call.run(self._plans, transport, pending.at)

    def _end(self, calls: Sequence[Pending]) -> None:
        """Note that these calls have ended together: what comes after one of them comes after all."""
        ranks = [self.ranks[pending.rank] for pending in calls]
        clock = [max(clocks) for clocks in zip(*(rank.clock for rank in ranks), strict=True)]
        for rank, pending in zip(ranks, calls, strict=True):
            rank.clock, pending.ended = list(clock), True
            if rank.is_suspended and rank.waits_for is pending:
                rank.is_suspended = False
                self.scheduler.wake(rank)  # type: ignore[arg-type]


def _tag(pending: Pending) -> str:
    call = pending.call
    return f"{call.group} {call.number if isinstance(call, Collective) else f'message {call.tag}'}"


def _from_anybody(pending: Pending) -> bool:
    return isinstance(pending.call, Message) and pending.call.peer is None
