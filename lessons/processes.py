"""The processes of ranks, as the judge holds them: started together, asked one by one, and killed in the end."""

import json
import linecache
import os
import re
import signal
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from launchers.by_value import hidden_main
from launchers.child import Child
from launchers.fork_server import preload, start_context, starting, warm_up
from lessons.lab import Fault, Lab
from lessons.rank import Source, rank_main
from transports.timing import now, sleep

SILENT_S = 5.0  # how long a rank may load its functions, or compute before it asks for something
_TRACE_S = 1.0  # how long it may take to write where it is
_START_S = 60.0  # for the processes, which may have to load torch
_LARGEST = 2**26  # bytes of a message
_MOST_PRINTED = 2000  # characters that are kept

preload("lessons.labs")


class Ranks:
    """The processes of ranks that run one student's functions: as many as the largest case so far needed."""

    def __init__(self, lab: Lab, source: Source) -> None:
        self.lab = lab
        self.source = source
        self.printed = ""
        self._processes: list[Process] = []
        self._folder = tempfile.TemporaryDirectory(prefix="lesson-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for process in self._processes:
            process.end()
        self._folder.cleanup()

    def start(self, n: int) -> list["Process"]:
        """Return `n` processes, all of which have loaded the student's functions. Raises Fault, RunFailed."""
        new = range(len(self._processes), n)
        if not new:
            return self._processes[:n]
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
                self._processes.append(Process(rank, mine, Child(process), trace))
        for rank in new:
            self._processes[rank].next(self.source, _START_S)  # it has started
        for rank in new:
            deadline = now() + SILENT_S
            while (request := self._processes[rank].next(self.source, deadline - now()))["what"] != "loaded":
                self.keep(rank, request)
            self._processes[rank].has_loaded = True
        return self._processes[:n]

    def keep(self, rank: int, request: dict[str, Any]) -> None:
        """Keep what a rank has printed."""
        if request["what"] == "printed" and len(self.printed) < _MOST_PRINTED:
            text = str(request["text"])
            begins = not self.printed or self.printed.endswith("\n")
            self.printed += f"rank {rank} printed: {text}" if begins and text.strip() else text
            if len(self.printed) >= _MOST_PRINTED:
                self.printed = f"{self.printed[:_MOST_PRINTED]}\n(and more; print less)\n"


class Process:
    """One rank's process, and the pipe to it."""

    def __init__(self, rank: int, pipe: Connection, child: Child, trace: Path) -> None:
        self.rank, self._pipe, self._child, self._trace = rank, pipe, child, trace
        self.has_loaded = False

    def next(self, source: Source, limit: float) -> dict[str, Any]:
        """Return what the rank asks for next, within `limit` seconds, its "payload" being bytes or None.

        Raises Fault if it has failed, or asks for nothing.
        """
        try:
            if limit <= 0 or not self._pipe.poll(limit):
                self._silent(source)
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

    def _silent(self, source: Source) -> NoReturn:
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGUSR1)  # upon which it writes where it is
        deadline = now() + _TRACE_S
        while not (text := self._trace.read_text()).endswith("\n") and now() < deadline:
            sleep(0.02)
        found = re.findall(r'File "(.*)", line (\d+)', text)
        where = next(((file, int(line)) for file, line in found if source.is_of_student(file)), None)
        at = f" at {_place(*where)}" if where else ""
        raise Fault("loop", f"rank {self.rank} does not come to an end{at}: an endless loop?")

    def _raised(self, request: dict[str, Any], source: Source) -> NoReturn:
        where = request["where"]
        at = _place(str(where[0]), int(where[1])) if where else "in the lab's own code, called from yours"
        text = f"{request['type']}: {request['text']}".removesuffix(": ")
        if not self.has_loaded:
            raise Fault("import", f"cannot be imported: {text}, {at}")
        if request["type"] == "NotImplementedError":
            raise Fault("hole", f"still to be written, {at.partition(' (')[0]}: {request['text'] or 'a hole'}")
        raise Fault("raised", f"{request['call']} raised {text}, {at}")


def _place(file: str, line: int) -> str:
    """Return a line of the student's, for people: its number, its file, its text."""
    name = "the cell" if "ipykernel" in file or file.startswith("<") else Path(file).name
    text = linecache.getline(file, line).strip()
    return f"line {line} of {name}" + (f" ({text})" if text else "")
