"""Runs a student's functions on ranks in virtual time, and finds what is wrong in how they send and receive.

Every rank is a process of its own, which holds the student's code and its own vectors and nothing else. The network is
in this process: for each rank a coroutine in virtual time reads what its process asks for, and does it. So a student's
code can neither see another rank's memory nor reach a counter, and one that hangs is one process that is killed.
"""

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lessons.lab import BANDWIDTH, LATENCY, UNREADABLE, Case, Fault, Lab, Run, Sent, Vectors
from lessons.processes import Process, Ranks, printable
from lessons.transport import MOST_SLEEP
from records.errors import RunFailed
from transports.base import ANY, PeerLost, Transport
from virtual_time.launcher import VirtualTime
from virtual_time.network import OneSwitch
from virtual_time.ranks import Deadlock
from virtual_time.transport import Simulated

_MOST_REQUESTS = 20_000  # of a rank in one case
_RELEASE = "use `with transport.recv(...) as received`, or copy_to"


def draw(lab: Lab, case: Case) -> Run:
    """Return a run to be made, on inputs that nobody has seen before."""
    return Run(case, lab.draw(case, random.SystemRandom()))


def play(ranks: Ranks, run: Run) -> Run:
    """Run one case on the inputs that `run` has; return it, with what was seen, also if a Fault ends it.

    After a Fault, these ranks cannot run anything more. Raises Fault.
    """
    return _Game(ranks, run, ranks.start(run.case.n)).play()


class _Game:
    """One case: what the coroutines of the ranks share."""

    def __init__(self, ranks: Ranks, run: Run, processes: Sequence[Process]) -> None:
        self.ranks, self.run, self.processes = ranks, run, processes
        self.case = run.case
        self.by_id: dict[tuple[int, int], Sent] = {}
        self.on_the_way: dict[tuple[int, int, str], deque[int]] = {}  # ids by source, destination, tag, in order
        self.newly_released: list[list[int]] = [[] for _ in processes]  # by sender: what it has not been told
        self.rounds = [0] * len(processes)  # of the last message that a rank has received
        self.waits: dict[int, tuple[int, str]] = {}  # who waits for whom (or ANY), and for what
        self.to_be_read: dict[int, Sent] = {}  # by its sender, who waits for that
        self.fault: Fault | None = None

    def play(self) -> Run:
        """Run the case. Raises Fault."""
        time = VirtualTime(OneSwitch(self.case.n, BANDWIDTH, LATENCY), lambda *_: 0.0)
        try:
            ended = time.launch(self._be, self.case.n)
        except Deadlock:
            raise self._explain_deadlock() from None
        except RunFailed:
            if self.fault is None:
                raise
            raise self.fault from None
        self.run.results = [result for result, *_ in ended]
        self.run.messages = [messages for _, messages, _, _ in ended]
        self.run.nbytes = [nbytes for _, _, nbytes, _ in ended]
        self.run.seconds = max(seconds for *_, seconds in ended)
        for message in self.run.sent:
            if message.arrived is None:
                raise self._explain_unread(message)
        for message in self.run.sent:
            if message.span and not message.released:
                raise self._explain_unreleased(message)
        return self.run

    def _be(self, transport: Transport) -> tuple[Vectors, int, int, float]:
        """Be one rank in virtual time, on behalf of its process."""
        assert isinstance(transport, Simulated)
        try:
            result = self._serve(transport, self.processes[transport.rank])
        except Fault as fault:
            self.fault = self.fault or fault
            raise
        except PeerLost as lost:
            self.fault = self.fault or self._describe_loss(transport.rank, lost)
            raise
        except UNREADABLE as error:
            # Only a process that does not go through `LabTransport` asks for what is not there.
            text = f"{self.case}: rank {transport.rank} asked for what no transport does ({type(error).__name__})"
            self.fault = self.fault or Fault("forged", text)
            raise
        return result, sum(transport.messages_sent), sum(transport.bytes_sent), transport.now()

    def _serve(self, transport: Simulated, process: Process) -> Vectors:
        rank = transport.rank
        process.answer((rank, self.case, self.run.inputs[rank]))
        for _ in range(_MOST_REQUESTS):
            request = process.next(self.ranks.source, self.ranks.patience)
            match request["what"]:
                case "isend":
                    self._send(transport, request)
                case "recv":
                    process.answer(self._receive(transport, request) | {"released": self._released(rank)})
                case "release":
                    self._release(transport, (int(request["src"]), int(request["id"])))
                case "wait":
                    self._wait(transport, (rank, int(request["id"])))
                    process.answer({"released": self._released(rank)})
                case "changed":
                    self._note_change(self.by_id[rank, int(request["id"])], request)
                case "wrote":
                    self._check_held(self.by_id[int(request["src"]), int(request["id"])])
                case "sleep":
                    if not 0 <= (seconds := float(request["seconds"])) <= MOST_SLEEP:
                        raise ValueError(seconds)
                    transport.sleep(seconds)
                case "printed":
                    self.ranks.keep(rank, request)
                case "result":
                    return dict(unpacked(request["vectors"], request["payload"]))
                case other:
                    raise ValueError(other)
        raise Fault("loop", f"{self.case}: rank {rank} sends, receives or prints without end: an endless loop?")

    # What a rank asks for

    def _send(self, transport: Simulated, request: dict[str, Any]) -> None:
        rank, dst, tag, n = transport.rank, int(request["dst"]), printable(request["tag"]), int(request["n"])
        if dst not in transport.peers:
            raise ValueError(dst)
        vector, span = None, None
        if request["payload"] is not None:
            vector = _vector(str(request["dtype"]), request["payload"])
            if request["span"]:
                number, start, stop = map(int, request["span"])
                span = number, start, stop
        before = transport.bytes_sent[dst]
        value = request.get("object") if vector is None else vector
        message = Sent(rank, len(self.run.of_rank(rank)) + 1, dst, tag, vector, span, 0, self.rounds[rank] + 1,
                       transport.now())  # fmt: skip
        self.by_id[rank, int(request["id"])] = message
        self.on_the_way.setdefault((rank, dst, tag), deque()).append(int(request["id"]))
        self.run.sent.append(message)
        transport.isend(value, dst, tag, n=n)
        message.nbytes = transport.bytes_sent[dst] - before

    def _receive(self, transport: Simulated, request: dict[str, Any]) -> dict[str, Any]:
        rank, src, tag = transport.rank, int(request["src"]), request["tag"]
        tags = printable(tag) if isinstance(tag, str) else tuple(map(printable, tag))
        self.waits[rank] = src, f"{tags!r}"
        received = transport.recv(src, tags)
        del self.waits[rank]
        number = self.on_the_way[received.src, rank, received.tag].popleft()
        message = self.by_id[received.src, number]
        message.arrived = transport.now()
        self.rounds[rank] = max(self.rounds[rank], message.round)
        answer = {"src": received.src, "tag": received.tag, "n": received.n, "nbytes": received.nbytes, "id": number,
                  "vector": received.tensor, "object": received.object}  # fmt: skip
        received.release()
        return answer

    def _release(self, transport: Simulated, key: tuple[int, int]) -> None:
        self.by_id[key].released = True
        self.newly_released[key[0]].append(key[1])
        sender = transport.ranks.transports[key[0]]
        assert isinstance(sender, Simulated)
        sender.wake(transport.now())

    def _wait(self, transport: Simulated, key: tuple[int, int]) -> None:
        message = self.by_id[key]
        while not message.released:
            self.waits[transport.rank] = message.dst, "release"
            self.to_be_read[transport.rank] = message
            transport.wait_for(message.dst, (), message.tag)
        self.waits.pop(transport.rank, None)
        self.to_be_read.pop(transport.rank, None)

    def _released(self, rank: int) -> list[int]:
        found, self.newly_released[rank] = self.newly_released[rank], []
        return found

    # What is wrong

    def _note_change(self, message: Sent, request: dict[str, Any]) -> None:
        """Keep that a message was changed on its way. The run goes on: what comes later may tell why."""
        if message.released or message.became is not None:
            return
        message.became = _vector(str(request["dtype"]), request["payload"])
        done = "received" if message.arrived is None else "released"
        self.run.damage = self.run.damage or (
            f"{self._step(message)} sent {self._what(message)} to rank {message.dst}, and changed it before rank "
            f"{message.dst} had {done} it: wait for its Work"
        )

    def _check_held(self, message: Sent) -> None:
        if message.span:  # else it is a copy, which nobody else reads
            of_sender = f"rank {message.rank}'s {self._what(message)}"
            raise Fault("damage", f"{self.case}: rank {message.dst} wrote into received.vector, which is {of_sender}: "
                                  "write into a vector of your own")  # fmt: skip

    def _explain_unread(self, message: Sent) -> Fault:
        text = self.ranks.lab.explain_unread(self.run, message) or (
            f"{self._step(message)} sent {self._what(message)} to rank {message.dst}, which never received it"
        )
        return Fault("unread", text)

    def _explain_unreleased(self, message: Sent) -> Fault:
        place = self.ranks.lab.place(message, self.case)
        return Fault("unreleased", f"N = {self.case.n}, {place}: rank {message.dst} received {self._what(message)} "
                                   f"of rank {message.rank} and never released it: {_RELEASE}")  # fmt: skip

    def _explain_deadlock(self) -> Fault:
        for message in self.to_be_read.values():
            if message.dst not in self.waits:  # its receiver has returned
                unread = message.arrived is None
                return self._explain_unread(message) if unread else self._explain_unreleased(message)
        return Fault("deadlock", f"{self.case}: deadlock: {self._describe_deadlock()}")

    def _describe_deadlock(self) -> str:
        """Return the cycle of who waits for whom; without one, begin with a rank that waits for a definite other."""
        paths = [self._follow(start) for start in sorted(self.waits)]
        path = max(paths, key=lambda path: (len(path) > len(set(path)), len(path) > 1))
        text = f"rank {path[0]} waits for {self._waited(path[0])}" + "".join(
            f", which waits for {self._waited(rank)}" for rank in path[1:] if rank in self.waits and rank != path[0]
        )
        held = [one for rank in path if (one := self.to_be_read.get(rank)) and one.arrived is not None]
        text += "".join(f"; rank {one.dst} has received it, but not released it: {_RELEASE}" for one in held[:1])
        other = [one for one in self.run.sent if one.arrived is None and self._is_awaited(one)]
        return text + "".join(f"; but rank {one.rank} has sent rank {one.dst} {one.tag!r}" for one in other[:1])

    def _follow(self, start: int) -> list[int]:
        """Return who waits for whom from a rank on, up to who waits for anybody; of a cycle only that, closed."""
        path = [start]
        while (following := self.waits.get(path[-1], (ANY, ""))[0]) != ANY:
            if following in path:
                return [*path[path.index(following) :], following]
            path.append(following)
        return path

    def _is_awaited(self, message: Sent) -> bool:
        """Whether its receiver waits for its sender, and so for another tag."""
        src, what = self.waits.get(message.dst, (message.dst, "release"))
        return what != "release" and src in (message.rank, ANY)

    def _waited(self, rank: int) -> str:
        src, what = self.waits[rank]
        why = "to read what it sent" if what == "release" else f"for {what}"
        return ("anybody" if src == ANY else f"rank {src}") + f" ({why})"

    def _describe_loss(self, rank: int, lost: PeerLost) -> Fault:
        if rank in self.waits and lost.rank != ANY:
            text = f"rank {rank} waits for {self._waited(rank)}, which has returned without sending it"
        elif rank in self.waits:
            text = f"rank {rank} waits for {self._waited(rank)}, and all others have returned"
        else:
            return self._explain_unread(
                next(one for one in self.run.sent if one.dst == lost.rank and one.arrived is None)
            )
        return Fault("deadlock", f"{self.case}: {text}")

    def _what(self, message: Sent) -> str:
        return self.ranks.lab.label(message, self.case)

    def _step(self, message: Sent) -> str:
        return f"N = {self.case.n}, {self.ranks.lab.place(message, self.case)}: rank {message.rank}"


def _vector(dtype: str, payload: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(dtype)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(kind) if payload else torch.empty(0, dtype=kind)


def unpacked(header: Sequence[Any], payload: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a rank ends with, by name, of a result that it has sent."""
    ends = itertools.accumulate(int(size) for *_, size in header)
    for (name, dtype, size), end in zip(header, ends, strict=True):
        yield str(name), _vector(str(dtype), payload[end - int(size) : end])
