"""The processes of ranks, as the judge holds them: started together, asked one by one, and killed in the end."""

import json
import os
import re
import signal
import socket
import struct
import tempfile
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from launchers.by_value import hidden_main
from launchers.child import Child
from launchers.fork_server import preload, start_context, starting, warm_up
from launchers.parent import ending_orphans
from lessons.lab import UNREADABLE, Fault, Lab
from lessons.patience import Patience
from lessons.rank import Source, rank_main
from lessons.transport import LARGEST
from transports.pipes import wire
from transports.segments import remove_segments
from transports.timing import now, sleep

_START_S = 60.0  # for the processes, which may have to load torch
_END_S = 5.0  # for those that are killed
_SEND_S = 5  # for a rank to take what it has asked for
_TRACE_S = 1.0  # how long a rank may take to write where it is
_LARGEST_TRACE = 100_000  # bytes of that which are read
_MOST_PRINTED = 2000  # characters that are kept
_LONGEST = 1000  # characters of what a rank says
_OF_THE_JUDGE = ("right", "costly")  # kinds of a verdict that no rank can give itself

preload("lessons.labs")


class Ranks:
    """The processes of ranks that run one student's functions: as many as the largest case so far needed.

    With `real`, they send to each other by shared memory, and there is one case.
    """

    def __init__(self, lab: Lab, source: Source, real: bool = False) -> None:
        self.lab = lab
        self.source = source
        self.real = real
        self.patience = Patience()
        self.printed = ""
        self._processes: list[Process] = []
        self._notices: list[Connection] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(ending_orphans())
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._stack:
            for process in self._processes:
                process.end()
            for notice in self._notices:
                notice.close()

    def start(self, n: int) -> list["Process"]:
        """Return `n` processes, all of which have loaded the student's functions. Raises Fault, RunFailed."""
        new = range(len(self._processes), n)
        if not new:
            return self._processes[:n]
        self._begin(n)
        for rank in new:
            self._processes[rank].next(self.source, Patience(_START_S, _START_S))  # it has started
        for rank in new:
            while (request := self._processes[rank].next(self.source, self.patience))["what"] != "loaded":
                self.keep(rank, request)
            self._processes[rank].has_loaded = True
        return self._processes[:n]

    def _begin(self, n: int) -> None:
        """Start the processes that are still missing for `n` ranks."""
        warm_up()
        context = start_context()
        with starting(_START_S):
            endpoints, self._notices = wire(n, context) if self.real else (None, [])
            for rank in range(len(self._processes), n):
                mine, theirs = context.Pipe()
                trace = tempfile.NamedTemporaryFile(prefix="lesson-")  # noqa: SIM115 - as long as the process
                endpoint = endpoints[rank] if endpoints else None
                args = (theirs, self.source, self.lab.functions, self.lab.name, trace.name, endpoint)
                process = context.Process(target=rank_main, args=args, daemon=True)
                with hidden_main():
                    process.start()
                theirs.close()
                if endpoint:
                    endpoint.close()  # only the rank may hold its ends: then their closing is its end
                self._processes.append(Process(rank, mine, Child(process), trace))

    def keep(self, rank: int, request: dict[str, Any]) -> None:
        """Keep what a rank has printed."""
        if request["what"] == "printed" and len(self.printed) < _MOST_PRINTED:
            text = printable(request["text"])
            mark = f"rank {rank} printed: "  # on each line, so that none can be taken for a line of the verdict
            begins = not self.printed or self.printed.endswith("\n")
            lines = text.splitlines(keepends=True)
            self.printed += "".join(mark * (i > 0 or begins) + line for i, line in enumerate(lines) if line)
            if len(self.printed) >= _MOST_PRINTED:
                self.printed = f"{self.printed[:_MOST_PRINTED]}\n(and more; print less)\n"


class Process:
    """One rank's process, and the pipe to it."""

    def __init__(self, rank: int, pipe: Connection, child: Child, trace: IO[bytes]) -> None:
        self.rank, self.pid = rank, child.pid
        self.pipe, self._child, self._trace = pipe, child, trace
        self.has_loaded = False
        with socket.socket(fileno=os.dup(pipe.fileno())) as ends:  # a rank that reads nothing stops nobody
            ends.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))

    def next(self, source: Source, patience: Patience) -> dict[str, Any]:
        """Return what the rank asks for next, its "payload" being bytes or None.

        Raises Fault if it has failed, or asks for nothing, or writes half of a request, for longer than `patience`.
        """
        patience.begin()
        try:
            header = json.loads(self._receive(source, patience))
            request: dict[str, Any] = {"kind": "", "text": "", "type": "", "where": None, "call": "", **header}
            request["payload"] = self._receive(source, patience) if header["payload"] else None
            if request["what"] == "fault":
                raise _fault(self.rank, str(request["kind"]), printable(request["text"]))
            if request["what"] == "raised":
                self._raised(request, source)
        except (EOFError, OSError) as error:
            how = self._child.how_it_ended(_END_S)
            raise Fault("died", f"rank {self.rank}: its process {how}") from error
        except UNREADABLE as error:
            raise Fault("forged", f"rank {self.rank} sends the judge what is no request") from error
        return request

    def answer(self, value: Any) -> None:
        """Give the rank what it asked for, or ask it for something. Raises Fault if it does not read that."""
        try:
            self.pipe.send(value)
        except BlockingIOError as error:
            raise Fault("forged", f"rank {self.rank} does not read what it has asked for") from error
        except OSError:
            pass  # `next` tells that it is gone

    def has_spoken(self, seconds: float) -> bool:
        """Return whether there is something to read, within so many seconds."""
        return self.pipe.poll(seconds)

    def end(self) -> None:
        """Kill the process, which has nothing to finish, and those that it has started."""
        self.pipe.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # a rank leads a group of its own
        self._child.kill()
        self._child.wait(_END_S)
        self._child.is_reaped(_END_S)
        remove_segments(self.pid)
        self._child.close()
        with suppress(FileNotFoundError):  # the rank may have removed it
            self._trace.close()

    def find_line(self, source: Source) -> str:
        """Return in which line of the student's the rank is, in words; "" if it is in none."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)  # upon which it writes where it is
        deadline = now() + _TRACE_S
        # Not by its name, under which the rank may have put something else.
        while not (text := os.pread(self._trace.fileno(), _LARGEST_TRACE, 0)).endswith(b"\n") and now() < deadline:
            sleep(0.02)
        found = re.findall(r'File "(.*)", line (\d{1,9})', text.decode(errors="replace"))
        where = next(((file, int(line)) for file, line in found if source.is_of_student(file)), None)
        return _place(source, *where) if where else ""

    def _receive(self, source: Source, patience: Patience) -> bytes:
        """Return one message of the pipe, in the format of `Connection.send_bytes`."""
        # Not by recv_bytes, which would wait for ever for the rest of a message.
        (size,) = struct.unpack("!i", self._read(4, source, patience))
        if not 0 <= size <= LARGEST:
            raise ValueError(size)
        return self._read(size, source, patience)

    def _read(self, size: int, source: Source, patience: Patience) -> bytes:
        parts: list[bytes] = []
        while size:
            if not patience.wait(self.has_spoken, [self.pid]):
                raise loop(self.rank, self.find_line(source))
            parts.append(os.read(self.pipe.fileno(), size))
            if not parts[-1]:
                raise EOFError
            size -= len(parts[-1])
        return b"".join(parts)

    def _raised(self, request: dict[str, Any], source: Source) -> NoReturn:
        where = request["where"]
        at = _place(source, str(where[0]), int(where[1])) if where else "in the lab's own code, called from yours"
        text = printable(f"{str(request['type'])[:100]}: {request['text']}").removesuffix(": ")
        if not self.has_loaded:
            raise Fault("import", f"cannot be imported: {text}, {at}")
        if request["type"] == "NotImplementedError" and request.get("hole"):
            hole = printable(request["text"]) or "a hole"
            raise Fault("hole", f"still to be written, {at.partition(' (')[0]}: {hole}")
        raise Fault("raised", f"{printable(request['call'])} raised {text}, {at}")


def loop(rank: int, line: str) -> Fault:
    """Return the Fault of a rank that does not come to an end."""
    return Fault("loop", f"rank {rank} does not come to an end{line and f' at {line}'}: an endless loop?")


def printable(text: object) -> str:
    """Return what a rank says as it can be printed anywhere: escapes of a terminal, say, are written out."""
    said = str(text)[:_LONGEST]
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in said)


def _fault(rank: int, kind: str, text: str) -> Fault:
    """Return the Fault that a rank has told of, which is no verdict of the judge's."""
    if kind in _OF_THE_JUDGE or text.startswith("right"):
        return Fault("forged", f"rank {rank} gives itself the verdict {printable(kind)!r}")
    return Fault(kind, text)


def _place(source: Source, file: str, line: int) -> str:
    """Return a line of the student's, for people: its number, its file, its text. Raises ValueError if it is not."""
    name = "the cell" if "ipykernel" in file or file.startswith("<") else Path(file).name
    text = printable(source.line(file, line))
    return f"line {line} of {name}" + (f" ({text})" if text else "")
