"""The engine in virtual time: each rank has a clock, and every collective and message takes its time on the network.

What a rank enters is done beside it, by a coroutine with a transport of its own that begins at the rank's clock: so a
collective that is not waited for is on its way while the rank computes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from tqdm import tqdm

from records.machine import name_of
from records.recorder import Recorder
from torch_scripts.collectives import Plan
from torch_scripts.matching import Calls, Meeting
from torch_scripts.passes import Passes
from torch_scripts.process_group import Collective, Pending
from torch_scripts.replaced import replaced
from torch_scripts.script import Program, Script, ranks_alone
from torch_scripts.threads import RankThread
from transports.card import Card
from virtual_time.network import Network
from virtual_time.ranks import Deadlock, Ranks
from virtual_time.sharing import Flow
from virtual_time.transport import Simulated
from virtual_time.world import World

_LOOK_S = 1e-6  # what a look that finds nothing takes, so that who looks again and again lets others continue
_TAGS = 100  # collectives that a rank may have under way at once, for its records


class ScriptRecorder(Recorder):
    """The records of a rank; `at` is the line of the script, in `folder`, that what is recorded now is due to."""

    def __init__(self, rank: int, folder: str) -> None:
        super().__init__(rank)
        self.epoch, self.at = 1, ""
        self._folder, self._places = folder, {"": 0}
        self._followed = {folder: {}}  # the frames at work are the hub's

    def _line_at_work(self) -> int:
        if self.at not in self._places:
            file, _, line = self.at.rpartition(":")
            self._places[self.at] = len(self._lines)
            self._lines.append(f"{name_of(self._folder + file)}:{line}" if line.isdigit() else "")
        return self._places[self.at]

    @property
    def files(self) -> set[str]:
        """The sources whose lines were recorded."""
        return {line.rpartition(":")[0] for line in self._lines if line}


class VirtualRank:
    """A rank of the script: its thread, its clock, what it waits for and its records.

    `compute`: the seconds of its passes, see `Passes`; None: its thread's own seconds count. `passes`: when each
    backward pass ended.
    """

    coroutine: greenlet
    thread: RankThread

    def __init__(self, recorder: ScriptRecorder, compute: float | None) -> None:
        self.number, self.recorder, self.compute = recorder.rank, recorder, compute
        self.clock, self._shown = 0.0, 0.0  # its time, and until when its records show it
        self.waits_for: Pending | None = None
        self.is_over = False
        self.phase = "forward"
        self.passes: list[float] = []
        recorder.clock = lambda: self.clock

    def pass_time(self) -> None:
        """Let the time pass that its thread has computed, if none is given."""
        if self.compute is None:
            self.clock += self.thread.spent
        self.thread.spent = 0.0

    def show(self, phase: str, tag: str = "") -> None:
        """Record what the rank has done since this was called last."""
        if self.clock > self._shown:
            self.recorder.at = self.thread.at
            self.recorder.add(phase, self._shown, self.clock, tag=tag)
        self._shown = self.clock


class Cluster:
    """All ranks, on a network: see `process_group.Engine`."""

    def __init__(self, network: Network, ranks: Sequence[VirtualRank], plans: dict[str, Plan]) -> None:
        self.world = World(network, compute=False)  # what a process has of its own, ProcessState changes
        self.ranks, self._plans = ranks, plans
        self.calls = Calls()
        self._transports: dict[int, list[_Simulated]] = {}  # of each Meeting

    def stop(self) -> None:
        """See Engine."""
        self.world.stop()

    def enter(self, pending: Pending) -> None:
        """See Engine."""
        rank, call = self._catch_up(pending), pending.call
        pending.at, pending.ended_at = rank.thread.at, rank.clock  # until it ends: when it began
        if isinstance(call, Collective):
            self._join(self.calls.meet(pending, call), pending, call)
        elif call.is_sent:
            self.calls.sends.append(pending)
            if receive := self.calls.receive_for(pending):
                self._carry(pending, receive, rank.clock)
        else:
            self.calls.receives.append(pending)
            if sends := self.calls.sends_for(pending):  # whose sender learns of the receive a latency later
                first = min(sends, key=lambda send: send.ended_at)
                self._carry(first, pending, rank.clock + self.world.network.latency)

    def wait(self, pending: Pending) -> None:
        """See Engine."""
        rank = self._catch_up(pending)
        rank.show(rank.phase)
        rank.waits_for = pending
        while not pending.ended:
            self.world.wait()
        rank.waits_for = None
        rank.clock = max(rank.clock, pending.ended_at)
        rank.show("wait", tag=pending.call.words.partition(" ")[0])

    def look(self, pending: Pending) -> bool:
        """See Engine."""
        rank = self._catch_up(pending)
        found = pending.ended and pending.ended_at <= rank.clock
        if not found:
            rank.clock += _LOOK_S
        return found

    def _catch_up(self, pending: Pending) -> VirtualRank:
        """Let all happen that others do before this rank's time."""
        rank = self.ranks[pending.rank]
        rank.pass_time()
        self.world.turn(rank.clock)
        return rank

    def _end(self, pending: Pending, at: float) -> None:
        """Note when a call has ended; its rank may wait for it."""
        pending.ended, pending.ended_at = True, at
        rank = self.ranks[pending.rank]
        if rank.waits_for is pending:
            self.world.at(max(at, rank.clock), rank.coroutine)

    def _join(self, meeting: Meeting, pending: Pending, call: Collective) -> None:
        """Do a rank's part of a collective, beside what the rank does."""
        key, at = id(meeting), self.ranks[pending.rank].clock
        if key not in self._transports:
            ranks = Ranks(self.world, len(call.ranks))
            self._transports[key] = [_Simulated(ranks, i, call.ranks) for i in range(len(call.ranks))]
        transport = self._transports[key][call.ranks.index(pending.rank)]
        if not meeting.missing:
            del self._transports[key]
        kind = f"{call.words.partition(' ')[0]} {call.number % _TAGS}"
        transport.recorder = _Log(self.ranks[pending.rank].recorder, call.ranks, kind, pending.at)

        def do() -> None:
            transport.coroutine, transport.clock = getcurrent(), at
            call.run(self._plans, transport, pending.at)
            self._end(pending, transport.clock)

        self.world.start(do, at)

    def _carry(self, send: Pending, receive: Pending, at: float) -> None:
        """Send a message whose receive is there."""
        sent, wanted = self.calls.pair(send, receive)
        payload, begun, asked = sent.tensor.clone(), send.ended_at, receive.ended_at
        src, dst, tag = send.rank, receive.rank, f"message {sent.tag}"

        def leave(time: float) -> None:
            self._record(send, begun, time, "send", dst, tag, payload.nbytes)
            self._end(send, time)

        def arrive() -> None:
            wanted.tensor.copy_(payload.view(wanted.tensor.shape))
            now = self.world.time
            self._record(receive, max(asked, begun), now, "recv", src, tag, payload.nbytes)
            self._end(receive, now)

        cards: Sequence[Card] = self.world.network.path(src, dst)
        self.world.sharing.send(Flow((src, dst), cards, payload.nbytes, leave, arrive), at)

    def _record(self, pending: Pending, t0: float, t1: float, *message: Any) -> None:
        recorder = self.ranks[pending.rank].recorder
        recorder.at = pending.at
        recorder.add("communicate", t0, t1, *message)


class _Simulated(Simulated):
    """The transport of one rank in one collective of some `members`."""

    def __init__(self, ranks: Ranks, i: int, members: Sequence[int]) -> None:
        super().__init__(ranks, i, torch.device("cpu"), Recorder(enabled=False), rejoined=False)
        network = self.network
        self.network = _Part(network, members)  # type: ignore[assignment]


class _Part:
    """The network as the members of a group see it."""

    def __init__(self, network: Network, members: Sequence[int]) -> None:
        self._network, self._members = network, members

    def path(self, src: int, dst: int) -> list[Card]:
        """See Network."""
        return self._network.path(self._members[src], self._members[dst])


class _Log(Recorder):
    """Passes on the messages of one collective to the records of a rank."""

    def __init__(self, to: ScriptRecorder, members: Sequence[int], kind: str, line: str) -> None:
        super().__init__(to.rank)
        self._to, self._members, self._kind, self._line = to, members, kind, line

    def add(self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, tag: str = "", *more: Any) -> None:
        """See Recorder. Waits are those of the rank, not those of a collective beside it."""
        if op:
            self._to.at = self._line
            self._to.add(phase, t0, t1, op, self._members[peer], f"{self._kind}: {tag}", *more)


def run_in_virtual_time(
    script: Script,
    network: Network,
    recorders: Sequence[ScriptRecorder],
    compute: float | None,
    plans: dict[str, Plan],
    seed: int = 0,
    progress: "tqdm[Any] | None" = None,
) -> Cluster:
    """Run the script on every rank of the network; return what has happened. Raises RunFailed, Deadlock.

    `compute`: the seconds of a forward and backward pass; None: those of each rank's thread on this machine.
    `progress` counts the passes of all ranks.
    """
    ranks = [VirtualRank(recorder, compute) for recorder in recorders]
    cluster = Cluster(network, ranks, plans)
    program = Program(script, ranks, cluster, seed)
    with ExitStack() as stack:
        stack.enter_context(ranks_alone(script))
        stack.enter_context(replaced({rank.number: Passes(rank, progress) for rank in ranks}, len(ranks)))
        try:
            for rank in ranks:
                rank.coroutine = cluster.world.start(partial(program.live, rank))
            cluster.world.run()
        finally:
            program.end()
            for rank in ranks:
                rank.coroutine.throw()
    if program.failure:
        raise program.failure
    if waits := program.deadlock(cluster.calls.reason):
        raise Deadlock(f"deadlock: {waits}")
    for rank in ranks:
        rank.pass_time()
        rank.show(rank.phase)
    return cluster
