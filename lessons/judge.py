"""Runs a student's functions on ranks in virtual time, and finds what is wrong in how they send and receive.

Every rank is a coroutine of this process. `processes.py` runs the judge in a process that it can end.
"""

import random
import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any

import torch
from greenlet import GreenletExit

from lessons.lab import BANDWIDTH, LATENCY, Case, Fault, Lab, Run, Sent, Vectors, first
from lessons.source import Source
from lessons.transport import LabTransport
from records.errors import RunFailed
from transports.base import ANY, PeerLost, Transport
from transports.messages import as_vector
from virtual_time.launcher import VirtualTime
from virtual_time.network import OneSwitch
from virtual_time.ranks import Deadlock
from virtual_time.transport import Simulated

RANK: ContextVar[int] = ContextVar("rank", default=0)  # whose code runs
_RELEASE = "use `with transport.recv(...) as received`, or copy_to"


def draw(lab: Lab, case: Case) -> Run:
    """Return a run that is not played yet, on new inputs."""
    return Run(case, lab.draw(case, random.SystemRandom()))


def launch(be: Callable[[Transport], Any], n: int) -> list[Any]:
    """Run `be(transport)` on n ranks of a switch in virtual time. Raises RunFailed."""
    return VirtualTime(OneSwitch(n, BANDWIDTH, LATENCY), lambda *_: 0.0).launch(be, n)


class Game:
    """One case, on the inputs that `run` has, by the functions `yours` of each rank, which come from `source`.

    It is what the coroutines of the ranks share.
    """

    def __init__(self, lab: Lab, yours: Sequence[Any], run: Run, source: Source) -> None:
        self.lab, self.yours, self.run, self.source = lab, yours, run, source
        self.case = run.case
        self.on_the_way = defaultdict[tuple[int, int, str], deque[Sent]](deque)  # by source, destination, tag, in order
        self.numbers = count(1)  # of what ranks send and take
        self.rounds = [0] * self.case.n  # of the last message that a rank has received
        self.to_be_read: dict[int, Sent] = {}  # by its sender, who waits for that
        self.fault: Fault | None = None
        self.ended = set[int]()

    def play(self) -> Run:
        """Return the run with its messages and results, also those before a Fault. Raises Fault."""
        try:
            ended = launch(self._be, self.case.n)
        except Deadlock as deadlock:
            raise self._explain_deadlock(str(deadlock)) from None
        except RunFailed:
            if self.fault is None:
                raise
            raise self.fault from None
        results, self.run.messages, self.run.nbytes, seconds = zip(*ended, strict=True)
        self.run.results, self.run.seconds = [*results], max(seconds)
        for message in self.run.sent:
            if message.arrived is None:
                raise self._explain_unread(message)
        for message in self.run.sent:
            if message.span and not message.released:
                raise self._explain_unreleased(message)
        return self.run

    def _be(self, transport: Transport) -> tuple[Vectors, int, int, float]:
        """Run one rank in virtual time."""
        assert isinstance(transport, Simulated)
        rank = transport.rank
        RANK.set(rank)
        mine = LabTransport(self, transport)
        try:
            result = self.lab.run(self.yours[rank], mine, self.case, self.run.inputs[rank])
            mine.look()
            self.ended.add(rank)
        except GreenletExit:
            raise
        except BaseException as error:
            lost = self._explain_loss(rank, error) if isinstance(error, PeerLost) else None
            self.fault = self.fault or lost or self.source.explain(error, f"{self.case}: rank {rank}")
            raise self.fault from error
        return result, transport.messages_sent.total(), transport.bytes_sent.total(), transport.now()

    def note_change(self, message: Sent, vector: torch.Tensor) -> None:
        """Note that a rank changed a message on its way. The run goes on: a later fault may explain the change."""
        message.became = as_vector(vector).clone()
        done = "received" if message.arrived is None else "released"
        text = f"and changed it before rank {message.dst} had {done} it: wait for its Work"
        self.run.damage = self.run.damage or f"{self._sending(message)}, {text}"

    def label(self, message: Sent) -> str:
        """Return what a message carries, in the lab's words."""
        return self.lab.label(message, self.case)

    # What is wrong

    def _explain_unread(self, message: Sent) -> Fault:
        text = f"{self._sending(message)}, which never received it"
        return Fault("unread", first(self.lab.explain_unread(self.run, message)) or text)

    def _explain_unreleased(self, message: Sent) -> Fault:
        place = self.lab.place(message, self.case)
        return Fault("unreleased", f"N = {self.case.n}, {place}: rank {message.dst} received {self.label(message)} "
                                   f"of rank {message.rank} and never released it: {_RELEASE}")  # fmt: skip

    def _explain_deadlock(self, waits: str) -> Fault:
        for message in self.to_be_read.values():
            if message.dst in self.ended:
                unread = message.arrived is None
                return self._explain_unread(message) if unread else self._explain_unreleased(message)
        held = next((one for one in self.to_be_read.values() if one.arrived is not None), None)
        if held:
            waits += f"; rank {held.dst} has received {held.tag!r}, but not released it: {_RELEASE}"
        for one in self.run.sent:
            waits_for_it = rf"rank {one.dst} waits for [^;]* from (rank {one.rank}|anybody)"
            if one.arrived is None and re.search(waits_for_it, waits):
                waits += f"; but rank {one.rank} has sent rank {one.dst} {one.tag!r}"
                break
        return Fault("deadlock", f"{self.case}: {waits}")

    def _explain_loss(self, rank: int, lost: PeerLost) -> Fault:
        if lost.what:
            why = lost.why if lost.rank == ANY else "which has returned without sending it"
            return Fault("deadlock", f"{self.case}: rank {rank} waits for {lost.what}, {why}")
        return self._explain_unread(next(one for one in self.run.sent if one.dst == lost.rank and one.arrived is None))

    def _sending(self, message: Sent) -> str:
        at = f"N = {self.case.n}, {self.lab.place(message, self.case)}:"
        return f"{at} rank {message.rank} sent {self.label(message)} to rank {message.dst}"
