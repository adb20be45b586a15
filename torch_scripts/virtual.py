"""The engine in virtual time: each rank has a clock, and every collective and message takes its time on the network.

What a rank enters is done beside it, by a coroutine with a transport of its own that begins at the rank's clock: so a
collective that is not waited for is on its way while the rank computes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from greenlet import getcurrent, greenlet

from records.recorder import Recorder
from records.sources import name_of
from torch_scripts.matching import Calls, Meeting, words_of
from torch_scripts.process_group import Collective, Pending, Receive, Send
from torch_scripts.threads import RankThread
from transports.card import Card
from virtual_time.network import Network
from virtual_time.ranks import Ranks
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
    def lines(self) -> list[str]:
        """The lines that were recorded."""
        return [line for line in self._lines if line]


class VirtualRank:
    """A rank of the script: its thread, its clock, what it waits for and its records."""

    coroutine: greenlet
    thread: RankThread

    def __init__(self, number: int, recorder: ScriptRecorder, compute: float | None) -> None:
        self.number, self.recorder = number, recorder
        self.clock = 0.0
        self.given = compute is not None  # else its thread's own seconds count
        self.waits_for: Pending | None = None
        self.passes: list[float] = []  # when each backward pass ended
        self.phase, self._shown = "forward", 0.0  # that it is in, and until when the records show it
        self.is_over = False
        recorder.clock = lambda: self.clock

    def pass_time(self) -> None:
        """In its thread: let the time pass that it has computed since this was called last."""
        seconds = self.thread.computed()
        if not self.given:
            self.clock += seconds

    def show(self, phase: str, **more: Any) -> None:
        """Record what the rank has done since this was called last."""
        if self.clock > self._shown:
            self.recorder.at = self.thread.at
            self.recorder.add(phase, self._shown, self.clock, **more)
        self._shown = self.clock


class Cluster:
    """All ranks, on a network: see `process_group.Engine`."""

    def __init__(self, world: World, ranks: Sequence[VirtualRank]) -> None:
        self.world, self.ranks = world, ranks
        self.calls = Calls()
        self._transports: dict[int, dict[int, Simulated]] = {}  # by the meeting's id: those who have not entered

    # What ranks ask for

    def enter(self, pending: Pending) -> None:
        """See Engine."""
        rank = self._catch_up(pending)
        pending.at = rank.thread.at
        call = pending.call
        if isinstance(call, Collective):
            self._join(self.calls.meeting(pending), pending, rank.clock)
        elif isinstance(call, Send):
            self.calls.sends.append(pending)
            pending.ended_at = rank.clock
            if receive := self.calls.receive_for(pending):
                self._carry(pending, receive, rank.clock)
        else:
            self.calls.receives.append(pending)
            pending.ended_at = rank.clock
            if sends := self.calls.sends_for(pending):  # whose sender learns of the receive a latency later
                first = min(sends, key=lambda send: send.ended_at)
                self._carry(first, pending, rank.clock + self.world.network.latency)

    def wait(self, pending: Pending) -> None:
        """See Engine."""
        rank = self.ranks[pending.rank]
        rank.show(rank.phase)
        if not pending.ended:
            rank.waits_for = pending
            while not pending.ended:
                self.world.wait()
            rank.waits_for = None
        rank.clock = max(rank.clock, pending.ended_at)
        rank.show("wait", tag=words_of(pending).partition(" ")[0])

    def look(self, pending: Pending) -> bool:
        """See Engine."""
        rank = self._catch_up(pending)
        if pending.ended and pending.ended_at <= rank.clock:
            return True
        rank.clock += _LOOK_S
        return False

    def _catch_up(self, pending: Pending) -> VirtualRank:
        """Let all happen that others do before this rank's time."""
        rank = self.ranks[pending.rank]
        self.world.turn(rank.clock)
        return rank

    def _end(self, pending: Pending, at: float) -> None:
        """Note when a call has ended; its rank may wait for it."""
        pending.ended, pending.ended_at = True, at
        rank = self.ranks[pending.rank]
        if rank.waits_for is pending:
            self.world.at(max(at, rank.clock), rank.coroutine)

    # Collectives

    def _join(self, meeting: Meeting, pending: Pending, at: float) -> None:
        call = pending.call
        assert isinstance(call, Collective)
        if id(meeting) not in self._transports:
            ranks = Ranks(self.world, len(meeting.ranks))
            made = [Simulated(ranks, i, torch.device("cpu"), Recorder(enabled=False), rejoined=False)
                    for i in range(len(meeting.ranks))]  # fmt: skip
            for transport in made:
                transport.network = _Part(self.world.network, meeting.ranks)  # type: ignore[assignment]
            self._transports[id(meeting)] = dict(zip(meeting.ranks, made, strict=True))
        transport = self._transports[id(meeting)].pop(pending.rank)
        if not self._transports[id(meeting)]:
            del self._transports[id(meeting)]
        tag = f"{words_of(pending).partition(' ')[0]} {call.number % _TAGS}"
        transport.recorder = _Log(self.ranks[pending.rank].recorder, meeting.ranks, tag, pending.at)

        def do() -> None:
            transport.coroutine, transport.clock = getcurrent(), at
            with torch.no_grad():
                call.run(transport)
            self._end(pending, transport.clock)

        self.world.start(do, at)

    # Messages

    def _carry(self, send: Pending, receive: Pending, at: float) -> None:
        """Send a message whose receive is there."""
        self.calls.pair(send, receive)
        sent, wanted = send.call, receive.call
        assert isinstance(sent, Send)
        assert isinstance(wanted, Receive)
        payload, begun, asked = sent.tensor.clone(), send.ended_at, receive.ended_at
        src, dst, tag = send.rank, receive.rank, f"message {sent.tag}"
        cards: Sequence[Card] = self.world.network.path(src, dst)

        def leave(time: float) -> None:
            self._record(send, begun, time, "send", dst, tag, payload.nbytes)
            self._end(send, time)

        def arrive() -> None:
            wanted.tensor.copy_(payload.view(wanted.tensor.shape))
            now = self.world.time
            self._record(receive, max(asked, begun), now, "recv", src, tag, payload.nbytes)
            self._end(receive, now)

        self.world.sharing.send(Flow((src, dst), cards, payload.nbytes, leave, arrive), at)

    def _record(self, pending: Pending, t0: float, t1: float, *message: Any) -> None:
        recorder = self.ranks[pending.rank].recorder
        recorder.at = pending.at
        recorder.add("communicate", t0, t1, *message)


class _Part:
    """The network as the ranks of a group see it."""

    def __init__(self, network: Network, ranks: Sequence[int]) -> None:
        self._network, self._ranks = network, ranks

    def path(self, src: int, dst: int) -> list[Card]:
        """See Network."""
        return self._network.path(self._ranks[src], self._ranks[dst])


class _Log(Recorder):
    """Passes on the messages of one collective to the records of a rank."""

    def __init__(self, to: ScriptRecorder, ranks: Sequence[int], tag: str, at: str) -> None:
        super().__init__(to.rank)
        self._to, self._ranks, self._prefix, self._at = to, ranks, tag, at

    def add(self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, tag: str = "", *more: Any) -> None:
        """See Recorder. Waits are those of the rank, not those of a collective beside it."""
        if op:
            self._to.at = self._at
            self._to.add(phase, t0, t1, op, self._ranks[peer], f"{self._prefix}: {tag}", *more)
