"""One rank's process: it runs the student's functions, by a transport that asks the judge for all, or a real one."""

import dis
import faulthandler
import importlib.util
import io
import linecache
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import torch

from launchers.parent import die_with_parent
from lessons.lab import Fault, Lab
from lessons.transport import Judge, LabTransport
from transports.pipes import Endpoint
from transports.shared_memory import SharedMemory

_LONGEST_WAIT_S = 300.0  # on real processes, which the judge ends much earlier


@dataclass(frozen=True)
class Source:
    """Where the student's functions are: in a file, or, from a notebook, by value."""

    path: str = ""
    by_value: bytes = b""
    text: str = field(default="", repr=False)  # of the file, which the judge has read once: a rank names lines of it

    @classmethod
    def of_file(cls, path: Path) -> "Source":
        """Return the functions of this file. Raises OSError."""
        return cls(str(path.resolve()), text=path.read_text(encoding="utf-8", errors="replace"))

    def load(self, names: Sequence[str]) -> SimpleNamespace:
        """Return the functions. Raises Fault if one is missing, and whatever the file raises."""
        if self.by_value:
            found = cloudpickle.loads(self.by_value)
        else:
            sys.path.append(str(Path(self.path).parent))
            # Whatever the file is called, it takes the place of no other module.
            loader = SourceFileLoader("your_file", self.path)
            spec = importlib.util.spec_from_file_location(loader.name, self.path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module.__name__] = module  # dataclasses look for their module there
            loader.exec_module(module)
            found = vars(module)
        for name in names:
            if not callable(found.get(name)):
                raise Fault("missing", f"there is no function {name}; define it, at the left margin")
        return SimpleNamespace(**{name: found[name] for name in names})

    def is_of_student(self, filename: str) -> bool:
        """Whether a line of a traceback is the student's own."""
        return filename == self.path or (not self.path and ("ipykernel" in filename or filename.startswith("<")))

    def line(self, filename: str, number: int) -> str:
        """Return the text of a line; "" if it is unknown. Reads no file. Raises ValueError if it is not the student's.

        The lines of a notebook are those that IPython has put into `linecache`.
        """
        if not self.is_of_student(filename):
            raise ValueError(filename)
        entry = linecache.cache.get(filename, ())
        lines = self.text.split("\n") if self.path else entry[2] if len(entry) > 2 else []
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


class _Printed(io.TextIOBase):
    """What the student prints goes to the judge, which says of which rank it is."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def write(self, text: str) -> int:
        self._judge.tell("printed", text=text[:2000])
        return len(text)


def rank_main(
    pipe: Connection,
    source: Source,
    functions: Sequence[str],
    lab_name: str,
    trace_path: str,
    endpoint: Endpoint | None,
) -> None:
    """Be one rank, for one case after the other, until the judge is gone; with an `endpoint`, on real processes."""
    die_with_parent()
    os.setsid()  # so that the judge ends what this one starts with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    judge = Judge(pipe)
    trace = open(trace_path, "w")  # noqa: SIM115 - as long as the process lives: where it is, if it never comes back
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silent, number)
    sys.stdout = sys.stderr = _Printed(judge)
    torch.set_num_threads(1)
    serve(judge, source, functions, lab_name, endpoint)
    sys.stdout.flush()
    os._exit(0)


def serve(
    judge: Judge, source: Source, functions: Sequence[str], lab_name: str, endpoint: Endpoint | None = None
) -> None:
    """Load the functions, then run the cases that the judge sends, until it closes the pipe or a case fails."""
    where = ""
    try:
        from lessons.labs import LABS

        judge.tell("started")
        yours = source.load(functions)
        judge.tell("loaded")
        lab: Lab = LABS[lab_name]
        while asked := judge.hear():
            rank, case, inputs = asked
            where = f"{case}: rank {rank}"
            transport: LabTransport | SharedMemory = LabTransport(judge, rank, case.n, lab.carries_objects)
            if endpoint:
                transport = SharedMemory(endpoint, torch.device("cpu"), _LONGEST_WAIT_S, None)
            result = lab.run(yours, transport, case, inputs)
            transport.close()
            judge.tell_result(result)
    except BaseException as error:
        _tell_of(error, judge, source, where)


def _tell_of(error: BaseException, judge: Judge, source: Source, where: str) -> None:
    """Tell what was raised, in which line of the student's, and in which call, if the lab has noted that, or where."""
    if isinstance(error, Fault):
        judge.tell("fault", kind=error.kind, text=str(error))
        return
    frames = [(one.filename, one.lineno or 0, one.name) for one in traceback.extract_tb(error.__traceback__)]
    own = [frame for frame in frames if source.is_of_student(frame[0])]
    if isinstance(error, SyntaxError) and error.filename is not None and source.is_of_student(error.filename):
        own = [(error.filename, error.lineno or 0, "")]
    notes = getattr(error, "__notes__", [])
    call = str(notes[-1])[:100] if notes else where
    hole = (not own or frames[-1:] == own[-1:]) and _is_raised_there(error)
    judge.tell("raised", type=type(error).__name__, text=str(error)[:500], where=own[-1] if own else None, call=call,
               hole=hole)  # fmt: skip


def _is_raised_there(error: BaseException) -> bool:
    """Whether a `raise` has raised it, and not a function of a library in C++, such as torch's, on that line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
