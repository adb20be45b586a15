"""The processes that run a student's functions: one in virtual time, or one a rank; all are ended, whatever they do."""

import faulthandler
import io
import os
import pickle
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import torch

from launchers.by_value import hidden_main
from launchers.child import Child
from launchers.fork_server import preload, start_context, starting, warm_up
from launchers.parent import die_with_parent, ending_orphans
from lessons.judge import RANK, draw, play
from lessons.lab import Fault, Lab, Run
from lessons.patience import Patience
from lessons.source import Source, printable
from transports.base import PeerLost
from transports.pipes import Endpoint, wire
from transports.segments import remove_segments
from transports.shared_memory import SharedMemory
from transports.timing import now, sleep

_START_S = 60.0  # for the processes, which may have to load torch
_VIRTUAL_S = 6.0  # for the student's code in all cases together: a right solution needs some tenths
_REAL_S = 1.5  # on real processes: what they do has ended in virtual time before
_END_S = 5.0  # for those that are killed
_TRACE_S = 1.0  # how long one may take to write where it is
_MOST_PRINTED = 2000  # characters
_LONGEST_WAIT_S = 300.0  # of a rank for another one, which is ended much earlier

preload("lessons.labs")


class Process:
    """One process that runs a student's functions, and the pipe to it. `name` stands for it in verdicts."""

    def __init__(self, lab: Lab, source: Source, name: str, endpoint: Endpoint | None = None) -> None:
        self.name, self._source = name, source
        self.pipe, theirs = start_context().Pipe()
        self._trace = tempfile.NamedTemporaryFile(prefix="lesson-")  # noqa: SIM115 - as long as the process
        args = (theirs, source, lab.name, self._trace.name, endpoint)
        process = start_context().Process(target=_main, args=args, daemon=True)
        with hidden_main():
            process.start()
        theirs.close()
        self._child = Child(process)
        self.pid = self._child.pid

    def next(self, patience: Patience) -> tuple[str, Any]:
        """Return its next message. Raises Fault if it ends, or sends nothing for longer than `patience`."""
        if not patience.wait(self.pipe.poll, self.pid):
            raise self.explain_loop()
        try:
            what, value = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise Fault("died", f"{self.name}: its process {self._child.how_it_ended(_END_S)}") from error
        if what == "fault":
            raise value
        return what, value

    def ask(self, value: Any) -> None:
        """Send it a run to play, or a rank's inputs."""
        with suppress(OSError):  # `next` raises the Fault
            self.pipe.send_bytes(pickle.dumps(value))

    def explain_loop(self) -> Fault:
        """Return the Fault of an endless loop, with the line of the student's that runs, if there is one."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)  # upon which it writes where it is
        deadline = now() + _TRACE_S
        while not (text := os.pread(self._trace.fileno(), 100_000, 0)).endswith(b"\n") and now() < deadline:
            sleep(0.02)
        found = re.findall(r'File "(.*)", line (\d+)', text.decode(errors="replace"))
        at = next((f" at {self._source.place(*one)}" for one in found if one[0] in self._source.texts), "")
        return Fault("loop", f"{self.name} does not come to an end{at}: an endless loop?")

    def end(self) -> None:
        """Kill the process, which has nothing to finish, and those that it has started."""
        self.pipe.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # it leads a group of its own
        self._child.kill()
        self._child.wait(_END_S)
        self._child.is_reaped(_END_S)
        remove_segments(self.pid)
        self._child.close()
        with suppress(FileNotFoundError):  # the student's code may have removed it
            self._trace.close()


@contextmanager
def _started(start: Callable[[list[Process]], None]) -> Iterator[list[Process]]:
    """In the block, there are the processes that `start(processes)` adds. Raises RunFailed."""
    processes: list[Process] = []
    warm_up()
    with ending_orphans():
        try:
            with starting(_START_S):
                start(processes)
            for process in processes:
                process.next(Patience(_START_S))
            yield processes
        finally:
            for process in processes:
                process.end()


class Student:
    """The process in which a student's functions run in virtual time, one case after the other. Raises RunFailed."""

    def __init__(self, lab: Lab, source: Source) -> None:
        self._stack = ExitStack()
        self._start = _started(lambda processes: processes.append(Process(lab, source, "your code")))
        self._patience = Patience(_VIRTUAL_S)
        self.printed = ""

    def __enter__(self) -> "Student":
        (self._process,) = self._stack.enter_context(self._start)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def play(self, run: Run) -> None:
        """Run one case on the inputs of `run`, and add its messages and results to `run`. Raises Fault."""
        self._process.name = f"{run.case}: your code"
        self._process.ask(run)
        while True:
            what, value = self._process.next(self._patience)
            if what == "printed":
                self.printed += value
                continue
            seen, fault = value
            vars(run).update(vars(seen) | {"inputs": run.inputs})
            if fault is not None:
                raise fault
            return


def run_on_processes(lab: Lab, source: Source) -> Run:
    """Return a run of the lab's case for processes; what was sent in it is not counted. Raises Fault, RunFailed."""
    run = draw(lab, lab.real)
    notices: list[Connection] = []

    def start(processes: list[Process]) -> None:
        endpoints, others = wire(run.case.n, start_context())
        notices.extend(others)
        for rank, endpoint in enumerate(endpoints):
            processes.append(Process(lab, source, f"rank {rank}", endpoint))
            endpoint.close()  # only the rank may hold its ends: then their closing is its end

    try:
        with _started(start) as processes:
            for process, inputs in zip(processes, run.inputs, strict=True):
                process.ask((run.case, inputs))
            run.results = _gather(processes)
    except Fault as fault:
        text = str(fault).removeprefix(f"{run.case}: ")
        raise Fault("real", f"right in virtual time, but on {run.case.n} real processes: {text}") from None
    finally:
        for notice in notices:
            notice.close()
    return run


def _gather(processes: list[Process]) -> list[Any]:
    """Return the result of each rank. Raises the first Fault, and a lost peer only if there is no other."""
    results: dict[int, Any] = {}
    lost: Fault | None = None
    silent = list(processes)
    patience = Patience(_REAL_S)
    while silent:
        pipes = [one.pipe for one in silent]
        if not patience.wait(partial(wait, pipes), *(one.pid for one in silent)):
            loops = [one.explain_loop() for one in silent]
            raise lost or next((fault for fault in loops if " at line " in str(fault)), loops[0])  # others may wait
        for process in [one for one in silent if one.pipe.poll()]:
            try:
                what, value = process.next(patience)
            except Fault as fault:
                if fault.kind != "lost":
                    raise
                what, value, lost = "result", None, lost or fault
            if what == "result":
                results[process.pid] = value
                silent.remove(process)
    if lost is not None:
        raise lost
    return [results[process.pid] for process in processes]


# In the processes


def _main(pipe: Connection, source: Source, lab_name: str, trace_path: str, endpoint: Endpoint | None) -> None:
    """Run the student's functions until the judge is gone; with an `endpoint`, as one rank on real processes, once."""
    die_with_parent()
    os.setsid()  # so that the judge ends what this one starts with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trace = open(trace_path, "w")  # noqa: SIM115 - as long as the process lives: where it is, if it never comes back
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silent, number)
    tell = partial(_tell, pipe)
    sys.stdout = sys.stderr = _Printed(tell)
    torch.set_num_threads(1)
    from lessons.labs import LABS

    with suppress(EOFError, OSError):  # the judge is gone
        if endpoint:
            _run_rank(pipe, tell, LABS[lab_name], source, endpoint)
        else:
            _play_cases(pipe, tell, LABS[lab_name], source)
    os._exit(0)


def _tell(pipe: Connection, what: str, value: Any = None) -> None:
    pipe.send_bytes(pickle.dumps((what, value)))


def _play_cases(pipe: Connection, tell: Callable[..., None], lab: Lab, source: Source) -> None:
    """Play the cases that the judge sends. Each rank loads the functions for itself, so that no rank sees another's."""
    tell("started")
    yours: list[SimpleNamespace] = []
    while True:
        run: Run = pickle.loads(pipe.recv_bytes())
        fault = None
        try:
            load_for(yours, run.case.n, lab, source)
            play(lab, yours, run, source)
        except Fault as raised:
            fault = raised
        run.inputs = ()  # which the judge has
        tell("played", (run, fault))


def load_for(yours: list[SimpleNamespace], n: int, lab: Lab, source: Source) -> None:
    """Load the functions for each of n ranks that does not have them in `yours`. Raises Fault."""
    try:
        for rank in range(len(yours), n):
            RANK.set(rank)
            yours.append(source.load(lab.functions))
    except BaseException as error:
        raise source.explain(error, "") from error


def _run_rank(pipe: Connection, tell: Callable[..., None], lab: Lab, source: Source, endpoint: Endpoint) -> None:
    """Run one rank on real processes, and send its result or its Fault."""
    where = ""
    try:
        yours = source.load(lab.functions)
        tell("started")
        case, inputs = pickle.loads(pipe.recv_bytes())
        where = f"{case}: rank {endpoint.rank}"
        transport = SharedMemory(endpoint, torch.device("cpu"), _LONGEST_WAIT_S, None)
        result = lab.run(yours, transport, case, inputs)
        transport.close()
        tell("result", result)
    except BaseException as error:
        fault = source.explain(error, where)
        tell("fault", Fault("lost", str(fault)) if isinstance(error, PeerLost) else fault)


class _Printed(io.TextIOBase):
    """A stream that sends what the student prints to the judge, each line with its rank, up to a limit."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._left, self._begins = tell, _MOST_PRINTED, True

    def write(self, text: str) -> int:
        if text and self._left > 0:
            mark = f"rank {RANK.get()} printed: "
            lines = printable(text).splitlines(keepends=True)
            marked = "".join(mark * (i > 0 or self._begins) + line for i, line in enumerate(lines))
            self._begins = text.endswith("\n")
            more = "\n(and more; print less)\n" if len(marked) >= self._left else ""
            self._tell("printed", marked[: self._left] + more)
            self._left -= len(marked)
        return len(text)
