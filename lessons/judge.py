"""Runs a student's functions on ranks in virtual time, and finds what is wrong in how they send and receive.

Every rank is a coroutine of this process. `processes.py` runs the judge in a process that it can end.
"""

import random
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from greenlet import GreenletExit
from typing_extensions import override

from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import ANY, Message, PeerLost, Transport, Work
from gradwire.core.transports.messages import Delivered, as_vector
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.ranks import Deadlock
from gradwire.virtual_time.transport import Simulated
from lessons.lab import BANDWIDTH, LATENCY, Case, Fault, Lab, Run, Sent, Vectors, first
from lessons.source import Source
from lessons.values import SPOILED

REFERENCES = Path(__file__).parent / "references"  # by a release: the solutions' runs, in place of the solutions
RANK: ContextVar[int] = ContextVar("rank", default=0)  # whose code runs
_RELEASE = "use `with transport.recv(...) as received`, or copy_to"


def draw(lab: Lab, case: Case, anew: bool = not REFERENCES.exists()) -> Run:
    """Return a run that is not played yet, on new inputs or on those that are always the same, for references."""
    chance = random.SystemRandom() if anew else random.Random(f"{lab.name}, {case!r}")
    return Run(case, lab.draw(case, chance))


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
        self.numbers = count(1)  # of what ranks send and take
        self.rounds = [0] * self.case.n  # of the last message that a rank has received
        self.to_be_read: dict[int, Sent] = {}  # by its sender, which waits for that
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

    def label(self, message: Sent) -> str:
        """Return what a message carries, in the lab's words."""
        return self.lab.label(message, self.case)

    # What is wrong

    def _explain_unread(self, message: Sent) -> Fault:
        text = f"{self.sending(message)}, which never received it"
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
        held = next((received for received in self.to_be_read.values() if received.arrived is not None), None)
        if held:
            waits += f"; rank {held.dst} has received {held.tag!r}, but not released it: {_RELEASE}"
        for sent in self.run.sent:
            waits_for_it = rf"rank {sent.dst} waits for [^;]* from (rank {sent.rank}|anybody)"
            if sent.arrived is None and re.search(waits_for_it, waits):
                waits += f"; but rank {sent.rank} has sent rank {sent.dst} {sent.tag!r}"
                break
        return Fault("deadlock", f"{self.case}: {waits}")

    def _explain_loss(self, rank: int, lost: PeerLost) -> Fault:
        if lost.what:
            why = lost.why if lost.rank == ANY else "which has returned without sending it"
            return Fault("deadlock", f"{self.case}: rank {rank} waits for {lost.what}, {why}")
        unread = [message for message in self.run.sent if message.dst == lost.rank and message.arrived is None]
        text = f"{self.case}: rank {rank} sends to rank {lost.rank}, which has returned"
        return self._explain_unread(unread[0]) if unread else Fault("unread", text)

    def sending(self, message: Sent) -> str:
        """Return the sender, receiver and label of a message, and its place in the run."""
        at = f"N = {self.case.n}, {self.lab.place(message, self.case)}:"
        return f"{at} rank {message.rank} sent {self.label(message)} to rank {message.dst}"


# What a student's function gets


def _bits(vector: torch.Tensor) -> torch.Tensor:
    return as_vector(vector).view(torch.uint8)


def _check_tags(tags: tuple[Any, ...]) -> None:
    if not tags or not all(isinstance(tag, str) for tag in tags):
        raise TypeError(f"the tag of a message is a string, such as 'chunk', or several in a tuple, and not {tags!r}")


class LabTransport:
    """What a student's function gets: `rank`, `world_size`, and the methods below, which are those of a `Transport`."""

    def __init__(self, game: Game, simulated: Simulated) -> None:
        self.rank, self.world_size, self.peers = simulated.rank, simulated.world_size, [*simulated.peers]
        self.messages_sent = simulated.messages_sent
        self._game, self._simulated = game, simulated
        self._memory: list[torch.Tensor] = []  # the allocated vectors
        self._in_use: list[tuple[Sent, torch.Tensor, torch.Tensor, torch.Tensor]] = []  # its bits now, and then

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a zeroed vector [numel] whose slices peers read in place."""
        self._memory.append(torch.zeros(numel, dtype=dtype))
        return self._memory[-1]

    def isend(self, value: Any, dst: int, tag: str, n: int = 0) -> Work:
        """Send a tensor or an object, and the number `n` beside it, to rank `dst`; return at once.

        A slice of an allocated vector is not to be changed until the Work is done; any other tensor is copied first.
        """
        if not isinstance(dst, int):
            raise TypeError(f"isend(tensor, dst, tag): dst is a {type(dst).__name__}; expected a rank")
        _check_tags((tag,))
        vector = as_vector(value.detach()).clone() if isinstance(value, torch.Tensor) else None
        if vector is None and not self._game.lab.carries_objects:
            none = "None, which is what functions that work in place return"
            given = none if value is None else f"a {type(value).__name__}"
            raise TypeError(f"isend(tensor, dst, tag) was given {given}; expected a tensor")
        self.look()
        span, game, sent = None if vector is None else self._span(value), self._game, self._simulated.now()
        before = self._simulated.bytes_sent.total()
        self._simulated.isend(value if vector is None else vector, dst, tag, n=n)
        message = Sent(self.rank, len(game.run.of_rank(self.rank)) + 1, dst, tag, vector, span,
                       self._simulated.bytes_sent.total() - before, game.rounds[self.rank] + 1, sent,
                       number=next(game.numbers))  # fmt: skip
        game.run.sent.append(message)
        if span is None:
            return Delivered()
        self._watch(message, value)
        return _OnTheWay(self, message)

    def recv(self, src: int, tag: str | tuple[str, ...]) -> Message:
        """Return the next message with `tag`, or one of several, of rank `src`, or of ANY; wait for it."""
        _check_tags(tag if isinstance(tag, tuple) else (tag,))
        self.look()
        received = self._simulated.recv(src, tag)
        sent = next(message for message in self._game.run.of_rank(received.src)
                    if (message.dst, message.tag) == (self.rank, received.tag) and not message.taken)  # fmt: skip
        sent.arrived, sent.taken = self._simulated.now(), next(self._game.numbers)
        self._game.rounds[self.rank] = max(self._game.rounds[self.rank], sent.round)
        received.release()
        if (vector := received.tensor) is not None:
            received._receiver, received._give_back = self._simulated, partial(self._give_back, sent, vector)
            self._watch(sent, vector)
        return received

    def _give_back(self, sent: Sent, vector: torch.Tensor) -> None:
        """Let its sender write into a received vector from here on."""
        self.look()
        sent.released = True
        sender = self._simulated.ranks.transports[sent.rank]
        assert isinstance(sender, Simulated)
        sender.wake(self._simulated.now())
        _bits(vector).fill_(SPOILED)

    def sleep(self, seconds: float) -> None:
        """Do nothing for `seconds` of virtual time."""
        self._simulated.sleep(seconds)

    def _span(self, value: torch.Tensor) -> tuple[int, int, int] | None:
        """Return where a slice lies: the number of its vector, its first element, one past its last."""
        for i, vector in enumerate(self._memory):
            same = value.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
            if same and value.is_contiguous() and value.dtype == vector.dtype:
                start = int(value.storage_offset())
                return i, start, start + value.numel()
        return None

    def _watch(self, message: Sent, vector: torch.Tensor) -> None:
        bits = _bits(vector)
        self._in_use.append((message, vector, bits, bits.clone()))

    def look(self) -> None:
        """Note changes of messages until their release. Of sent ones: a later fault may explain the change.

        Raises Fault for those of received ones.
        """
        self._in_use = [entry for entry in self._in_use if not entry[0].released]
        for message, vector, now, then in self._in_use:
            if not message.span or torch.equal(now, then):
                continue  # without a span it is a copy, which no other rank reads
            if message.rank != self.rank:
                raise Fault("damage", f"{self._game.run.case}: rank {self.rank} wrote into received.vector, which is "
                                      f"rank {message.rank}'s {self._game.label(message)}: write into a vector of your "
                                      "own")  # fmt: skip
            if message.became is None:
                message.became = as_vector(vector).clone()
            done = "received" if message.arrived is None else "released"
            text = f"and changed it before rank {message.dst} had {done} it: wait for its Work"
            self._game.run.damage = self._game.run.damage or f"{self._game.sending(message)}, {text}"


class _OnTheWay(Work):
    """A slice that is read where it is."""

    def __init__(self, transport: LabTransport, message: Sent) -> None:
        self._transport, self._message = transport, message

    @property
    @override
    def done(self) -> bool:
        return self._message.released

    @override
    def wait(self) -> None:
        transport, message, to_be_read = self._transport, self._message, self._transport._game.to_be_read
        transport.look()
        while not message.released:
            to_be_read[transport.rank] = message
            transport._simulated.wait_for(message.dst, (), message.tag)
        to_be_read.pop(transport.rank, None)
