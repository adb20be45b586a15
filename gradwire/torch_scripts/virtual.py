"""The engine in virtual time: each rank has a clock, and every collective and message takes its time on the network.

What a rank enters is done beside it, by a coroutine with a transport of its own that begins at the rank's clock: so a
collective that is not waited for is on its way while the rank computes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from greenlet import getcurrent
from torch import nn
from tqdm import tqdm

from gradwire.core.records.machine import name_of
from gradwire.core.records.recorder import Recorder
from gradwire.networks.card import Card
from gradwire.torch_scripts.collectives import Plan
from gradwire.torch_scripts.engine import Engine, PendingCollective
from gradwire.torch_scripts.process_group import Collective, Pending
from gradwire.torch_scripts.script import Program, ranks_alone
from gradwire.torch_scripts.threads import RankThread
from gradwire.virtual_time.network import Network
from gradwire.virtual_time.ranks import Deadlock
from gradwire.virtual_time.sharing import Flow
from gradwire.virtual_time.world import World

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


class VirtualRank(RankThread):
    """A rank of the script, with a clock and its records. `passes`: when each backward pass ended.

    With `compute`, the seconds of both passes, a third passes in the forward pass, two thirds in the backward pass: at
    each module, or gradient, the part that it has of all elements whose gradients are computed. Otherwise the seconds
    of its thread pass.
    """

    progress: "tqdm[Any] | None" = None

    def __init__(self, script: Program, recorder: ScriptRecorder, n: int, seed: int, compute: float | None) -> None:
        super().__init__(script, recorder.rank, n, seed)
        self.recorder, self._compute = recorder, compute
        self.clock = self._shown = 0.0  # its time, and until when its records show it
        self.phase = "forward"
        self.passes: list[float] = []
        self._elements = 0  # whose gradients the last backward pass has computed
        self._done = 0.0  # seconds of the pass that goes on
        recorder.clock = lambda: self.clock

    def pass_time(self) -> None:
        """Let the time pass that its thread has computed, if none is given."""
        if self._compute is None:
            self.clock += self.spent
        self.spent = 0.0

    def show(self, phase: str, tag: str = "") -> None:
        """Record what the rank has done since this was called last."""
        if self.clock > self._shown:
            self.recorder.at = self.at
            self.recorder.add(phase, self._shown, self.clock, tag=tag)
        self._shown = self.clock

    def forward(self, module: nn.Module) -> None:
        """Let the time pass in which a module computes, if it is known which have gradients."""
        if self._elements and torch.is_grad_enabled():
            self._spend(1 / 3, sum(p.numel() for p in module.parameters(recurse=False) if p.requires_grad))

    def backward(self, run: Callable[[], Any], outputs: Iterable[torch.Tensor]) -> Any:
        """Run a backward pass from these tensors on, and let its time pass."""
        leaves = _leaves(outputs) if self._compute else []
        self._end_pass("forward", 1 / 3)
        self._elements = sum(leaf.variable.numel() for leaf in leaves)
        handles = [leaf.register_prehook(partial(self._spend, 2 / 3, leaf.variable.numel())) for leaf in leaves]
        self.phase = "backward"
        try:
            return run()
        finally:
            for handle in handles:
                handle.remove()
            self._end_pass("backward", 2 / 3)
            self.phase = "forward"
            self.recorder.step += 1
            self.passes.append(self.clock)
            if self.progress is not None:
                self.progress.set_postfix_str(f"{self.clock:.3g} virtual s", refresh=False)
                self.progress.update()

    def _spend(self, part: float, own: int, _: Any = None) -> None:
        whole = (self._compute or 0.0) * part
        seconds = min(whole * own / max(self._elements, 1), whole - self._done)
        self._done += seconds
        self.clock += seconds

    def _end_pass(self, phase: str, part: float) -> None:
        self.note()
        self.pass_time()
        self.clock += (self._compute or 0.0) * part - self._done
        self._done = 0.0
        self.show(phase)


def _leaves(outputs: Iterable[torch.Tensor]) -> list[Any]:
    """Return the nodes of the graph behind these tensors that accumulate gradients."""
    seen, nodes = set[Any](), {output.grad_fn for output in outputs}
    while nodes := nodes - seen - {None}:
        seen |= nodes
        nodes = {following for node in nodes if node for following, _ in node.next_functions}
    return [node for node in seen if hasattr(node, "variable")]


class Cluster(Engine[VirtualRank]):
    """All ranks, on a network."""

    def __init__(self, network: Network, ranks: Sequence[VirtualRank], plans: dict[str, Plan]) -> None:
        super().__init__(ranks, plans)
        self.world = World(network, compute=False)  # what a process has of its own, ProcessState changes

    def stop(self) -> None:
        """See Engine."""
        self.world.stop()

    def enter(self, pending: Pending) -> None:
        """See Engine."""
        rank, call = self._catch_up(pending), pending.call
        pending.at, pending.ended_at = rank.at, rank.clock  # until it ends: when it began
        if isinstance(call, Collective):
            self._join(self.meet(pending, call), rank, pending, call)
        elif call.is_sent:
            self.sends.append(pending)
            if receive := next((one for one in self.receives if pending.fits(one)), None):
                self._carry(pending, receive, rank.clock)
        else:
            self.receives.append(pending)
            if sends := self.sends_for(pending):  # whose sender learns of the receive a latency later
                first = min(sends, key=lambda send: send.ended_at)
                self._carry(first, pending, rank.clock + self.world.network.delay(pending.rank, first.rank))

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

    def run_all(self) -> None:
        """Run the ranks until nothing more can happen."""
        try:
            for rank in self.ranks:
                rank.coroutine = self.world.start(partial(self.run_rank, rank))
            self.world.run()
        finally:
            for rank in self.ranks:
                rank.coroutine.throw()

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
    script: Program, network: Network, recorders: Sequence[ScriptRecorder], compute: float | None,
    plans: dict[str, Plan], seed: int = 0, progress: "tqdm[Any] | None" = None,
) -> Cluster:  # fmt: skip
    """Run the script on every rank of the network; return what has happened. Raises RunFailed, Deadlock.

    `compute`: see `VirtualRank`. `progress` counts the passes of all ranks.
    """
    ranks = [VirtualRank(script, recorder, len(recorders), seed, compute) for recorder in recorders]
    for rank in ranks:
        rank.progress = progress
    cluster = Cluster(network, ranks, plans)
    with ranks_alone(script):
        cluster.run(cluster.run_all)
    if cluster.failure:
        raise cluster.failure
    if waits := cluster.deadlock():
        raise Deadlock(f"deadlock: {waits}")
    for rank in ranks:
        rank.pass_time()
        rank.show(rank.phase)
    return cluster
