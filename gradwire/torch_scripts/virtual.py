"""The engine in virtual time: each rank has a clock, and every collective and message takes its time on the network.

What a rank enters is done beside it, by a coroutine with a transport of its own that begins at the rank's clock: so a
collective that is not waited for is on its way while the rank computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from greenlet import getcurrent
from tqdm import tqdm
from typing_extensions import override

from gradwire.backend.calls import Collective
from gradwire.backend.collectives import Plan
from gradwire.core.records.recorder import Recorder
from gradwire.diagnosis.step_hashes import StepHashes
from gradwire.networks.card import Card
from gradwire.torch_scripts.calls import Pending
from gradwire.torch_scripts.engine import Engine, PendingCollective
from gradwire.torch_scripts.script import Program, ranks_alone
from gradwire.torch_scripts.virtual_rank import ScriptRecorder, Speed, VirtualRank
from gradwire.torch_scripts.watcher import Watcher
from gradwire.virtual_time.network import Network
from gradwire.virtual_time.ranks import Deadlock
from gradwire.virtual_time.sharing import Flow
from gradwire.virtual_time.world import World

_LOOK_S = 1e-6  # what a look that finds nothing takes, so that who looks again and again lets others continue
_TAGS = 100  # collectives that a rank may have under way at once, for its records


class Cluster(Engine[VirtualRank]):
    """All ranks, on a network."""

    def __init__(self, network: Network, ranks: Sequence[VirtualRank], plans: dict[str, Plan]) -> None:
        super().__init__(ranks, plans)
        self.world = World(network, compute=False)  # what a process has of its own, ProcessState changes

    @override
    def stop(self) -> None:
        self.world.stop()

    @override
    def enter(self, pending: Pending) -> None:
        rank, call = self._catch_up(pending), pending.call
        pending.at, pending.ended_at = rank.at, rank.clock  # until it ends: when it began
        if isinstance(call, Collective):
            self._join(self.meet(pending, call), rank, pending, call)
        elif call.is_sent:
            self.sends.append(pending)
            if receive := next((other for other in self.receives if pending.fits(other)), None):
                self._carry(pending, receive, rank.clock)
        else:
            self.receives.append(pending)
            if sends := self.sends_for(pending):  # whose sender learns of the receive a latency later
                first = min(sends, key=lambda send: send.ended_at)
                self._carry(first, pending, rank.clock + self.world.network.delay(pending.rank, first.rank))

    @override
    def wait(self, pending: Pending, limit_s: float | None = None) -> str:
        rank = self._catch_up(pending)
        rank.show(rank.phase)
        rank.waits_for, late = pending, ""
        until = float("inf") if limit_s is None else rank.clock + limit_s

        def give_up() -> None:
            nonlocal late
            if rank.waits_for is pending and not pending.ended:
                late = f"Timed out waiting {1000 * (limit_s or 0):g}ms: {self.reason(pending)}"
                self.world.at(until, rank.coroutine)

        if limit_s is not None:
            self.world.at(until, give_up)
        while not (pending.ended or late):
            self.world.wait()
        rank.waits_for = None
        rank.clock = max(rank.clock, until if late else pending.ended_at)
        rank.show("wait", tag=pending.call.words.partition(" ")[0])
        return late

    @override
    def look(self, pending: Pending) -> bool:
        rank = self._catch_up(pending)
        found = pending.ended and pending.ended_at <= rank.clock
        if not found:
            rank.clock += _LOOK_S
        return found

    @override
    def wait_until(self, rank: VirtualRank, ready: Callable[[], bool], words: str, limit_s: float | None) -> bool:
        rank.pass_time()
        self.world.turn(rank.clock)
        rank.show(rank.phase)
        rank.waits_in, late = words, False
        until = float("inf") if limit_s is None else rank.clock + limit_s

        def give_up() -> None:
            nonlocal late
            if rank in self.waiting:
                late = True
                self.waiting.remove(rank)
                self.world.at(until, rank.coroutine)

        if limit_s is not None and not ready():
            self.world.at(until, give_up)
        while not (ready() or late):
            self.waiting.append(rank)
            self.world.wait()
            rank.clock = max(rank.clock, self.world.time)
        rank.waits_in = ""
        rank.show("wait", tag=words)
        return ready()

    def start_process(self, starter: VirtualRank, rank: VirtualRank, number: int) -> None:
        """Let another thread be the rank of this one, which goes on beside it."""
        rank.engine, self.ranks[rank.rank] = self, rank
        self.starters.append(starter)

        def run() -> None:
            self.run_rank(rank)
            self.started.ended.add(number)
            self.changed(rank)

        rank.coroutine = self.world.start(run, rank.clock)

    @override
    def changed(self, rank: VirtualRank) -> None:
        waiting, self.waiting = self.waiting, []
        for other in waiting:
            self.world.at(rank.clock, other.coroutine)

    @override
    def sleep(self, rank: VirtualRank, seconds: float) -> None:
        rank.pass_time()
        rank.show(rank.phase)
        rank.clock += seconds
        self.world.turn(rank.clock)
        rank.show("wait", tag="sleep")

    def run_all(self) -> None:
        """Run the ranks until nothing more can happen."""
        try:
            for rank in self.ranks:
                rank.coroutine = self.world.start(partial(self.run_rank, rank))
            self.world.run()
        finally:
            for rank in [*self.ranks, *self.starters]:
                rank.coroutine.throw()

    def _catch_up(self, pending: Pending) -> VirtualRank:
        """Let all happen that others do before this rank's time."""
        rank = self.ranks[pending.rank]
        rank.pass_time()
        self.world.turn(rank.clock)
        return rank

    def _end(self, pending: Pending, at: float) -> None:
        """Note when a call has ended; its rank may wait for it."""
        pending.end(at)
        rank = self.ranks[pending.rank]
        if rank.waits_for is pending:
            self.world.at(max(at, rank.clock), rank.coroutine)

    def _join(self, meeting: PendingCollective, rank: VirtualRank, pending: Pending, call: Collective) -> None:
        """Do a rank's part of a collective, beside what the rank does."""
        at = rank.clock
        transport = meeting.transports(self.world)[call.ranks.index(pending.rank)]
        transport.network = _Part(self.world.network, call.ranks)  # type: ignore[assignment]
        kind = f"{call.words.partition(' ')[0]} {call.number % _TAGS}"
        transport.recorder = _Log(rank.recorder, call.ranks, kind, pending.at)

        def do() -> None:
            transport.coroutine, transport.clock = getcurrent(), at
            call.run(self._plans, transport, pending.at)
            self._end(pending, transport.clock)

        self.world.start(do, at)

    def _carry(self, send: Pending, receive: Pending, at: float) -> None:
        """Send a message whose receive is there."""
        sent, wanted = self.pair(send, receive)
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

        flow = Flow((src, dst), self.world.network.path(src, dst), payload.nbytes, leave, arrive)
        self.world.sharing.send(flow, at)

    def _record(self, pending: Pending, t0: float, t1: float, *message: Any) -> None:
        recorder = self.ranks[pending.rank].recorder
        recorder.at = pending.at
        recorder.add("communicate", t0, t1, *message)


@dataclass
class _Part:
    """The network as the members of a group see it."""

    network: Network
    members: Sequence[int]
    acknowledged = property(lambda self: self.network.acknowledged)

    def way(self, src: int, dst: int) -> tuple[int, int]:
        """See Network."""
        return self.members[src], self.members[dst]

    def path(self, src: int, dst: int) -> list[Card]:
        """See Network."""
        return self.network.path(*self.way(src, dst))


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
    script: Program, network: Network, recorders: Sequence[ScriptRecorder], speed: Speed,
    plans: dict[str, Plan], seed: int = 0, progress: "tqdm[Any] | None" = None, watcher: Watcher | None = None,
    hashes: bool = False,
) -> Cluster:  # fmt: skip
    """Run the script on every rank of the network; return what has happened. Raises RunFailed, Deadlock.

    `progress` counts the passes of all ranks. `hashes`: keep those of their steps.
    """
    ranks = [VirtualRank(script, recorder, len(recorders), seed, speed) for recorder in recorders]
    for rank in ranks:
        rank.progress, rank.watcher = progress, watcher or rank.watcher
        rank.hashes = StepHashes() if hashes else None
    cluster = Cluster(network, ranks, plans)
    with ranks_alone(script), (watcher or Watcher()).watch():
        cluster.run(cluster.run_all)
    if cluster.failure:
        raise cluster.failure
    if waits := cluster.deadlock():
        raise Deadlock(f"deadlock: {waits}")
    for rank in cluster.ranks:
        rank.pass_time()
        rank.show(rank.phase)
    return cluster
