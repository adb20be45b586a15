"""A script of the user's with torch.distributed, run in every order of its messages: what holds in all of them.

The scheduler of `every_order` takes the place of the clock. It decides which message a receive from anybody takes, and
whether `is_completed()` finds that a call has ended; nothing else branches. A message that a receive names, and a
collective, come in one way only. As with gloo, a send ends when its receive is there. A look that finds nothing is
repeated only after some rank has called something.

A result is what the ranks print, and the parameters of every optimizer that has taken a step.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from greenlet import getcurrent
from typing_extensions import override

from gradwire.backend.calls import Collective, Message
from gradwire.backend.collectives import Plan
from gradwire.checking.findings import Finding
from gradwire.checking.orders import FITS, READ, SAME, WAITS, finding_of
from gradwire.core.records.tables import aligned
from gradwire.core.transports.messages import as_vector
from gradwire.every_order.report import Counterexample
from gradwire.every_order.runs import counted
from gradwire.every_order.scheduler import NOTHING, TAKE, Choice, Pick, Question, Scheduler, Sent
from gradwire.every_order.search import Orders, repeat
from gradwire.torch_scripts.calls import Pending
from gradwire.torch_scripts.collectives import plans
from gradwire.torch_scripts.engine import Engine, PendingCollective
from gradwire.torch_scripts.script import Script, ranks_alone
from gradwire.torch_scripts.threads import RankThread
from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.transport import Simulated
from gradwire.virtual_time.world import World


class OrderedRank(RankThread):
    """A rank of the script. `clock`: by rank, the calls that came before what it does now."""

    def __init__(self, script: Script, rank: int, world_size: int, seed: int) -> None:
        self.output = io.StringIO()
        super().__init__(script, rank, world_size, seed, [self.output, io.StringIO()])
        self.clock = [0] * world_size
        self.looked: dict[int, int] = {}  # at which calls in vain, and how many there were by then of all ranks
        self.parameters: dict[int, torch.Tensor] = {}
        self.is_suspended = False

    @override
    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters.update((id(p), p) for group in optimizer.param_groups for p in group["params"])


class OrderExplorer(Engine[OrderedRank]):
    """The calls of all ranks, in an order that the scheduler decides."""

    def __init__(self, scheduler: Scheduler, ranks: Sequence[OrderedRank], plans: dict[str, Plan]) -> None:
        super().__init__(ranks, plans)
        self.scheduler = scheduler
        self._entered = 0
        scheduler.ranks = ranks

    @override
    def stop(self) -> None:
        self.scheduler.failed = True

    @override
    def enter(self, pending: Pending) -> None:
        rank, call = self.ranks[pending.rank], pending.call
        pending.at = rank.at
        self._entered += 1
        rank.clock[rank.rank] += 1
        peers = call.ranks if isinstance(call, Collective) else () if call.peer is None else (call.peer,)
        for peer in peers:
            self.scheduler.sent.append(Sent(rank.rank, peer, _tag(pending), tuple(rank.clock)))
        if isinstance(call, Collective):
            if not (meeting := self.meet(pending, call)).missing:
                self._complete(meeting)
        else:
            (self.sends if call.is_sent else self.receives).append(pending)
            self._deliver()

    def wait(self, pending: Pending, limit_s: float | None = None) -> str:
        """See Engine: without a clock, no limit is reached.

        While a rank waits, what it receives from anybody may come, so that its sender can go on.
        """
        rank = self.ranks[pending.rank]
        rank.waits_for = pending
        while not pending.ended:
            if self._open_ones(rank):
                self._decide(pending, looks=False)
            else:
                rank.is_suspended = True
                self.scheduler.suspend()
        rank.waits_for = None
        return ""

    @override
    def look(self, pending: Pending) -> bool:
        rank = self.ranks[pending.rank]
        rank.waits_for = pending
        while (found := self._decide(pending, looks=True)) is None:
            pass
        rank.waits_for = None
        return found

    @override
    def wait_until(self, rank: OrderedRank, ready: Callable[[], bool], words: str, limit_s: float | None) -> bool:
        rank.waits_in = words
        while not ready():
            self.waiting.append(rank)
            self.scheduler.suspend()
        rank.waits_in = ""
        return True

    @override
    def changed(self, rank: OrderedRank) -> None:
        waiting, self.waiting = self.waiting, []
        for other in waiting:
            self.scheduler.wake(other)

    def sleep(self, rank: OrderedRank, seconds: float) -> None:
        """See Engine: there is no time that could pass."""

    def _open_ones(self, rank: OrderedRank) -> list[Pending]:
        """Return the receives of a rank from anybody that may take a message next: of each tag the first."""
        firsts: dict[str, Pending] = {}
        for receive in self.receives:
            if receive.rank == rank.rank and _from_anybody(receive):
                firsts.setdefault(_tag(receive), receive)
        return list(firsts.values())

    def _decide(self, pending: Pending, looks: bool) -> bool | None:
        """Let it be decided whether a call has ended, or which message a receive from anybody takes (None)."""
        rank, at, words = self.ranks[pending.rank], pending.thread.at, pending.call.words
        messages: dict[Choice, tuple[Pending, Pending]] = {}

        def choices() -> list[Choice]:
            messages.clear()
            for receive in () if pending.ended else self._open_ones(rank):
                for send in self.sends_for(receive):
                    which = f"rank {send.rank}" + receive.call.words.partition("anybody")[2]  # the tag
                    messages[TAKE, send.rank, f"takes the message of {which} at {receive.at}"] = send, receive
            found = list(messages)
            if pending.ended:
                found.append((TAKE, -1, f"sees at {at} that its {words} has ended"))
            if looks and rank.looked.get(id(pending)) != self._entered:
                found.append((NOTHING, -1, f"sees at {at} that its {words} has not ended"))
            return found

        tags = None if looks else tuple(_tag(open_one) for open_one in self._open_ones(rank))
        picked = self.scheduler.choose(rank.rank, Question(choices, tags=tags))
        if picked in messages:
            self._pair(*messages[picked])
            return True if pending.ended else None
        if picked[0] == NOTHING:
            rank.looked[id(pending)] = self._entered
        return picked[0] == TAKE

    def _deliver(self) -> None:
        """Deliver messages to the receives that name their sender, unless a receive from any rank is before them."""
        open_ones = set[tuple[int, str]]()
        for receive in list(self.receives):
            if _from_anybody(receive):
                open_ones.add((receive.rank, _tag(receive)))
            elif (receive.rank, _tag(receive)) not in open_ones and (sends := self.sends_for(receive)):
                self._pair(sends[0], receive)

    def _pair(self, send: Pending, receive: Pending) -> None:
        sent, wanted = self.pair(send, receive)
        wanted.tensor.copy_(sent.tensor.view(wanted.tensor.shape))
        self._end([send, receive])
        self._deliver()

    def _complete(self, meeting: PendingCollective) -> None:
        """Do a collective that all have entered."""
        world = World(OneSwitch(len(meeting.ranks), 1.0, 0.0), compute=False)
        for rank, transport in zip(meeting.ranks, meeting.transports(world), strict=True):
            world.start(partial(self._take_part, meeting.entered[rank], transport))
        world.run()
        self._end(list(meeting.entered.values()))

    def _take_part(self, pending: Pending, transport: Simulated) -> None:
        assert isinstance(pending.call, Collective)
        transport.coroutine = getcurrent()
        pending.call.run(self._plans, transport, pending.at)

    def _end(self, calls: Sequence[Pending]) -> None:
        """Note that these calls have ended together: an event after one of them is after all."""
        ranks = [self.ranks[pending.rank] for pending in calls]
        clock = [max(clocks) for clocks in zip(*(rank.clock for rank in ranks), strict=True)]
        for rank, pending in zip(ranks, calls, strict=True):
            rank.clock = list(clock)
            pending.end()
            if rank.is_suspended and rank.waits_for is pending:
                rank.is_suspended = False
                self.scheduler.wake(rank)


def _tag(pending: Pending) -> str:
    call = pending.call
    return f"{call.group} {call.number if isinstance(call, Collective) else f'message {call.tag}'}"


def _from_anybody(pending: Pending) -> bool:
    return isinstance(pending.call, Message) and pending.call.peer is None


class ScriptRun(Scheduler):
    """One run in one order, what does not hold, and its result."""

    def __init__(self, pick: Pick, reduced: bool) -> None:
        super().__init__(pick, reduced)
        self.broken: dict[str, str] = {}
        self.result = ""


def run_once(script: Script, n: int, seed: int, plans: dict[str, Plan], pick: Pick, reduced: bool = True) -> ScriptRun:
    """Run the script once, in the order that `pick` decides; inside of `ranks_alone`. See `Scheduler`."""
    script.forget()
    run, ranks = ScriptRun(pick, reduced), [OrderedRank(script, i, n, seed) for i in range(n)]
    engine = OrderExplorer(run, ranks, plans)
    engine.run(partial(run.run, engine.run_rank))
    if engine.failure:
        run.broken[FITS] = str(engine.failure)
    elif waits := engine.deadlock():
        run.broken[WAITS] = waits
    else:
        run.result = _digest(ranks)
        if unread := engine.unread():
            run.broken[READ] = "; ".join(unread)
    return run


def _digest(ranks: Sequence[OrderedRank]) -> str:
    digest = hashlib.sha256()
    for rank in ranks:
        digest.update(rank.output.getvalue().encode())
        for p in rank.parameters.values():
            digest.update(as_vector(p).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass
class ScriptReport:
    """What holds in how many orders of a script. `complete`: these are all orders of it.

    `broken` says what does not hold, and `shortest` the first order in which it does not, as lines.
    """

    orders: int = 0
    complete: bool = True
    held: dict[str, int] = field(default_factory=lambda: dict.fromkeys((WAITS, FITS, READ, SAME), 0))
    results: set[str] = field(default_factory=set)
    broken: str = ""
    shortest: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # in that order

    def text(self, name: str) -> str:
        """Return it as lines."""
        size = "all of them" if self.complete else "not all"
        rows = [[says, f"holds in {held} of {self.orders}"] for says, held in self.held.items()]
        results = counted(len(self.results), "different result")
        first = f"{name}: {counted(self.orders, 'order')}, {size}; {results}"
        return "\n".join([first, aligned(rows, left=2), *self.shortest])


def examine(
    script: Script, n: int, seed: int = 0, at_most: int = 20_000, bar: Callable[[], object] = lambda: None
) -> ScriptReport:
    """Run the script in all orders, or `at_most`; call `bar` after each. Raises RunFailed."""
    report, first = ScriptReport(), ""
    with ranks_alone(script):
        once = partial(run_once, script, n, seed, plans("ring"))
        orders = Orders(once, at_most)
        for run in orders:
            report.orders += 1
            bar()
            if run.result:
                first = first or run.result
                report.results.add(run.result)
                if run.result != first:
                    run.broken[SAME] = "its result differs from that of an order before"
            for says in report.held:
                report.held[says] += says not in run.broken
            if run.broken and not report.broken:
                report.broken = "; ".join(f"{says}: {why}" for says, why in run.broken.items())
                again = Counterexample(once(repeat(run.happened), reduced=False), report.broken)
                report.shortest = again.text(most=10**9).splitlines()
                words = [decision.words for decision in again.run.taken if decision.picked]
                report.findings = [finding_of(says, why, words) for says, why in run.broken.items()]
        report.complete = orders.complete
    return report
