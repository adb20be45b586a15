"""Runs a student's functions on ranks in virtual time, and finds what is wrong in how they send and receive.

Every rank is a process of its own, which holds the student's code and its own vectors and nothing else. The network is
in this process: for each rank a coroutine in virtual time reads what its process asks for, and does it. So a student's
code can neither see another rank's memory nor reach a counter, and one that hangs is one process that is killed.
"""

import itertools
import json
import linecache
import os
import random
import re
import signal
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import torch

from launchers.by_value import hidden_main
from launchers.child import Child
from launchers.fork_server import preload, start_context, starting, warm_up
from launchers.virtual import VirtualTime
from lessons.lab import BANDWIDTH, LATENCY, Case, Fault, Lab, Run, Sent, Vectors
from lessons.rank import Source, rank_main
from records.errors import RunFailed
from transports.base import ANY, PeerLost, Transport
from transports.network import OneSwitch
from transports.simulated import Deadlock, Simulated

SILENT_S = 5.0  # how long a rank may compute before it asks for something
_START_S = 60.0  # for the processes, which may have to load torch
_MOST_REQUESTS = 20_000  # of a rank in one case
_LARGEST = 2**26  # bytes of a message
_MOST_PRINTED = 2000  # characters that are kept

preload("lessons.labs")


class Ranks:
    """The processes of ranks that run one student's functions: as many as the largest case so far needed."""

    def __init__(self, lab: Lab, source: Source) -> None:
        self.lab = lab
        self.source = source
        self.printed = ""
        self._processes: list[_Process] = []
        self._folder = tempfile.TemporaryDirectory(prefix="lesson-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for process in self._processes:
            process.end()
        self._folder.cleanup()

    def run(self, run: Run) -> Run:
        """Run one case, whose inputs `run` has; return it, with what was seen. After a Fault, nothing more can be run.

        Raises Fault.
        """
        self._start(run.case.n)
        return _Game(self, run, self._processes[: run.case.n]).play()

    def _start(self, n: int) -> None:
        """Have `n` processes, all of which have loaded the student's functions. Raises Fault, RunFailed."""
        new = range(len(self._processes), n)
        if not new:
            return
        warm_up()
        context = start_context()
        with starting(_START_S):
            for rank in new:
                mine, theirs = context.Pipe()
                trace = Path(self._folder.name, f"{rank}.trace")
                args = (theirs, self.source, self.lab.functions, self.lab.name, str(trace))
                process = context.Process(target=rank_main, args=args, daemon=True)
                with hidden_main():
                    process.start()
                theirs.close()
                self._processes.append(_Process(rank, mine, Child(process), trace))
        for rank in new:
            limit = _START_S + SILENT_S if rank == 0 else SILENT_S
            while (request := self._processes[rank].next(self.source, limit))["what"] != "loaded":
                self.keep(rank, request)

    def keep(self, rank: int, request: dict[str, Any]) -> None:
        """Keep what a rank has printed."""
        if request["what"] == "printed" and len(self.printed) < _MOST_PRINTED:
            text = str(request["text"])
            begins = not self.printed or self.printed.endswith("\n")
            self.printed += f"rank {rank} printed: {text}" if begins and text.strip() else text


class _Process:
    """One rank's process, and the pipe to it."""

    def __init__(self, rank: int, pipe: Connection, child: Child, trace: Path) -> None:
        self.rank, self._pipe, self._child, self._trace = rank, pipe, child, trace

    def next(self, source: Source, limit: float = SILENT_S) -> dict[str, Any]:
        """Return what the rank asks for next, its "payload" being bytes or None. Raises Fault if it has failed."""
        try:
            if not self._pipe.poll(limit):
                self._silent(source, limit)
            request: dict[str, Any] = json.loads(self._pipe.recv_bytes(_LARGEST))
            request["payload"] = self._pipe.recv_bytes(_LARGEST) if request["payload"] else None
        except (EOFError, OSError) as error:
            how = self._child.how_it_ended(SILENT_S)
            raise Fault("died", f"rank {self.rank}: its process {how}") from error
        if request["what"] == "fault":
            raise Fault(str(request["kind"]), str(request["text"]))
        if request["what"] == "raised":
            self._raised(request, source)
        return request

    def answer(self, value: Any) -> None:
        """Give the rank what it asked for, or ask it for something."""
        with suppress(OSError):  # `next` tells that it is gone
            self._pipe.send(value)

    def end(self) -> None:
        """Kill the process: it has nothing to finish."""
        self._pipe.close()
        self._child.kill()
        self._child.wait(SILENT_S)
        self._child.is_reaped(SILENT_S)
        self._child.close()

    def _silent(self, source: Source, limit: float) -> NoReturn:
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGUSR1)  # upon which it writes where it is
        self._pipe.poll(1.0)
        found = re.findall(r'File "(.*)", line (\d+)', self._trace.read_text())
        where = next(((file, int(line)) for file, line in found if source.is_of_student(file)), None)
        at = f" at {_place(*where)}" if where else ""
        raise Fault("loop", f"rank {self.rank} has computed for {limit:g} s{at}, and sent and received nothing: "
                            "an endless loop?")  # fmt: skip

    def _raised(self, request: dict[str, Any], source: Source) -> NoReturn:
        where = request["where"]
        at = _place(str(where[0]), int(where[1])) if where else "in the lab's own code, called from yours"
        text = f"{request['type']}: {request['text']}".removesuffix(": ")
        if request["type"] == "NotImplementedError":
            raise Fault("hole", f"still to be written, {at.partition(' (')[0]}: {request['text'] or 'a hole'}")
        raise Fault("raised", f"rank {self.rank} raised {text}, {at}")


def _place(file: str, line: int) -> str:
    """Return a line of the student's, for people: its number, its file, its text."""
    name = "the cell" if "ipykernel" in file or file.startswith("<") else Path(file).name
    text = linecache.getline(file, line).strip()
    return f"line {line} of {name}" + (f" ({text})" if text else "")


class _Game:
    """One case: what the coroutines of the ranks share."""

    def __init__(self, ranks: Ranks, run: Run, processes: Sequence[_Process]) -> None:
        self.ranks, self.run, self.processes = ranks, run, processes
        self.case = run.case
        self.by_id: dict[tuple[int, int], Sent] = {}
        self.on_the_way: dict[tuple[int, int, str], deque[int]] = {}  # ids by source, destination, tag, in order
        self.newly_released: list[list[int]] = [[] for _ in processes]  # by sender: what it has not been told
        self.rounds = [0] * len(processes)  # of the last message that a rank has received
        self.waits: dict[int, tuple[int, str]] = {}  # who waits for whom (or ANY), and for what
        self.fault: Fault | None = None

    def play(self) -> Run:
        """Run the case. Raises Fault."""
        time = VirtualTime(OneSwitch(self.case.n, BANDWIDTH, LATENCY), lambda *_: 0.0)
        try:
            ended = time.launch(self._be, self.case.n)
        except Deadlock:
            raise Fault("deadlock", f"{self.case}: deadlock: {self._describe_deadlock()}") from None
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
                raise Fault("unread", f"{self._step(message)} sent {self._what(message)} to rank {message.dst}, which "
                                      "never received it")  # fmt: skip
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
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            # Only a process that does not go through `LabTransport` asks for what is not there.
            text = f"{self.case}: rank {transport.rank} asked for what no transport does ({type(error).__name__})"
            self.fault = self.fault or Fault("forged", text)
            raise
        return result, sum(transport.messages_sent), sum(transport.bytes_sent), transport.now()

    def _serve(self, transport: Simulated, process: _Process) -> Vectors:
        rank = transport.rank
        process.answer((rank, self.case, self.run.inputs[rank]))
        for _ in range(_MOST_REQUESTS):
            request = process.next(self.ranks.source)
            self._check_unchanged(rank, request.get("changed", ()))
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
                case "printed":
                    self.ranks.keep(rank, request)
                case "result":
                    return dict(_unpacked(request["vectors"], request["payload"]))
                case other:
                    raise ValueError(other)
        raise Fault("loop", f"{self.case}: rank {rank} has sent and received {_MOST_REQUESTS} times: an endless loop?")

    # What a rank asks for

    def _send(self, transport: Simulated, request: dict[str, Any]) -> None:
        rank, dst, tag = transport.rank, int(request["dst"]), str(request["tag"])
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
        transport.isend(value, dst, tag, n=int(request["n"]))
        message.nbytes = transport.bytes_sent[dst] - before

    def _receive(self, transport: Simulated, request: dict[str, Any]) -> dict[str, Any]:
        rank, src, tag = transport.rank, int(request["src"]), request["tag"]
        tags = tag if isinstance(tag, str) else tuple(map(str, tag))
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
            transport.wait_for(message.dst, (), message.tag)
        self.waits.pop(transport.rank, None)

    def _released(self, rank: int) -> list[int]:
        found, self.newly_released[rank] = self.newly_released[rank], []
        return found

    # What is wrong

    def _check_unchanged(self, rank: int, changed: Sequence[int]) -> None:
        for number in changed:
            message = self.by_id[rank, int(number)]
            if not message.released:
                cure = f"before rank {message.dst} had received it: wait for its Work"
                if message.arrived is not None:
                    cure = (f"while rank {message.dst} has not released it: receive it in `with transport.recv(...) as "
                            "received`, or by copy_to")  # fmt: skip
                sent = f"{self._step(message)} sent {self._what(message)} to rank {message.dst}"
                raise Fault("damage", f"{sent}, and changed it {cure}")

    def _describe_deadlock(self) -> str:
        """Return the cycle of who waits for whom."""
        start = min(self.waits)
        path = [start]
        while (following := self.waits.get(path[-1], (ANY, ""))[0]) != ANY and following not in path:
            path.append(following)
        if following in path:
            path = [*path[path.index(following) :], following]
        first, *others = path
        text = f"rank {first} waits for {self._waited(first)}" + "".join(
            f", which waits for {self._waited(rank)}" for rank in others[:-1]
        )
        other = [one for one in self.run.sent if one.arrived is None and self._is_awaited(one)]
        return text + "".join(f"; but rank {one.rank} has sent rank {one.dst} {one.tag!r}" for one in other[:1])

    def _is_awaited(self, message: Sent) -> bool:
        """Whether its receiver waits for its sender, and so for another tag."""
        src, what = self.waits.get(message.dst, (message.dst, "release"))
        return what != "release" and src in (message.rank, ANY)

    def _waited(self, rank: int) -> str:
        src, what = self.waits[rank]
        if what == "release":
            return f"rank {src} to receive and release what it sent"
        return f"{what} from " + ("anybody" if src == ANY else f"rank {src}")

    def _describe_loss(self, rank: int, lost: PeerLost) -> Fault:
        if rank in self.waits and lost.rank != ANY:
            text = f"rank {rank} waits for {self._waited(rank)}, which has returned without sending it"
        elif rank in self.waits:
            text = f"rank {rank} waits for {self._waited(rank)}, and all others have returned"
        else:
            text = f"rank {rank} sends to rank {lost.rank}, which has returned and receives nothing more"
        return Fault("deadlock", f"{self.case}: {text}")

    def _what(self, message: Sent) -> str:
        return self.ranks.lab.label(message, self.case)

    def _step(self, message: Sent) -> str:
        return f"N = {self.case.n}, step {message.step}: rank {message.rank}"


def _vector(dtype: str, payload: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(dtype)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(kind) if payload else torch.empty(0, dtype=kind)


def _unpacked(header: Sequence[Any], payload: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    ends = itertools.accumulate(int(size) for *_, size in header)
    for (name, dtype, size), end in zip(header, ends, strict=True):
        yield str(name), _vector(str(dtype), payload[end - int(size) : end])


def draw(lab: Lab, case: Case) -> Sequence[Vectors]:
    """Return inputs that nobody has seen before."""
    return lab.draw(case, random.SystemRandom())
