"""Ranks as threads of one process, of which one runs at a time.

A thread for each rank, and no coroutine: C++ code that calls back into Python keeps a stack for each thread, so a
script that waits inside a backward pass could not be suspended otherwise. The main thread is the hub. It lets one rank
run until that rank asks for something; what it asks for is done on the hub.
"""

import ctypes
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from greenlet import greenlet
from torch import nn

from gradwire.core.records.errors import RunFailed, one_line
from gradwire.core.transports.timing import cpu_seconds, now
from gradwire.torch_scripts.on_cpu import CudaIsCpu
from gradwire.torch_scripts.output import Lines
from gradwire.torch_scripts.process_state import ProcessState
from gradwire.torch_scripts.script import Program
from gradwire.torch_scripts.starter import Process, Starter
from gradwire.torch_scripts.watcher import Watcher

if TYPE_CHECKING:
    from gradwire.torch_scripts.calls import Pending
    from gradwire.torch_scripts.engine import Engine

Request = Callable[[], Any]
_LOOK_S = 120.0  # how often the hub looks whether the rank that runs still computes
_COMPUTES_S = 0.5  # seconds of all threads between two looks, below which it does not
_OURS = f"{Path(__file__).parents[1]}{os.sep}"  # a script may lie beside this package
END_S = 1.0  # how long ranks that do not end by themselves are given
_AGAIN_S = 0.05  # how often a rank that computes is told to end
_here = threading.local()


class Killed(BaseException):
    """Raised in a rank whose run has ended."""


@dataclass(frozen=True)
class BackwardCall:
    """What a backward pass is asked for. No `inputs`: all leaves. `has_graph`: it makes a graph itself."""

    outputs: Sequence[Any]
    inputs: Sequence[Any]
    has_graph: bool


class RankThread:
    """A rank of a script. `at` is the line of the script at which it asked last; `failure` is what ended it.

    `answer`: what its last request returned, set by the hub. `spent`: the seconds that it has computed. `futures`: the
    calls whose futures nobody has set. `waits_for`: the call that it waits for; `waits_in`: what it does with an object
    that processes share, in words. `is_over`: it has come to its end. `result`: what a function has returned.
    `has_optimizer`: it has made one. `watcher` is told of its calls.
    """

    engine: "Engine[Any]"
    coroutine: greenlet  # of the hub, which does what this rank asks for
    watcher = Watcher()

    def __init__(self, script: Program, rank: int, n: int, seed: int, outputs: Sequence[Any] | None = None) -> None:
        self.rank, self._script = rank, script
        self._outputs = outputs or [Lines(rank, output) for output in (sys.stdout, sys.stderr)]
        self.state = ProcessState(rank, n, script.arguments, seed, self._outputs)
        self.at = "its start"
        self.failure: RunFailed | None = None
        self.answer: Any = None
        self.result: Any = None
        self.futures: list[Pending] = []
        self.waits_for: Pending | None = None
        self.waits_in = ""
        self._request: Request | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"rank {rank}", daemon=True)
        self.has_optimizer = False
        self.starter = Starter(self)
        self._is_killed = self.is_over = self._runs = False
        self.spent = self._since = 0.0

    @property
    def is_process(self) -> bool:
        """Whether it runs a process that the script has started."""
        return isinstance(self._script, Process)

    # On the hub

    def resume(self) -> Request | None:
        """Let the rank run until it asks for something; return that, or None: it has ended. Raises RunFailed."""
        self.state.install()
        if self._thread.ident is None:
            self._thread.start()
        self._runs = True
        self._go.release()
        computed = sum(os.times()[:4])
        while not self._back.acquire(timeout=_LOOK_S):
            computed, before = sum(os.times()[:4]), computed
            if computed - before < _COMPUTES_S:
                frame = sys._current_frames().get(self._thread.ident or 0)
                raise RunFailed(
                    f"rank {self.rank} neither computes nor asks for anything, at {self._line(walk_stack(frame))}: "
                    "ranks are threads of one process, and it waits for what no other of them can do meanwhile"
                )
        self._runs = False
        if self.failure is not None:
            raise self.failure
        return self._request

    def kill(self, until: float) -> None:
        """End the rank, whether it waits for an answer or computes. After `until`, its thread is left behind."""
        self._is_killed = True
        if self._thread.is_alive() and (self._runs or (self._request is not None and now() < until)):
            self.state.install()
            self._go.release()  # of no effect if it computes: what it asks for next raises Killed
            while not self._back.acquire(timeout=_AGAIN_S):
                _raise_in(self._thread)
                if now() > until:
                    break
            self._thread.join(max(0.0, until - now()))
        for output in self._outputs:
            if isinstance(output, Lines):
                output.end()

    # In the thread

    def ask(self, request: Request) -> Any:
        """Suspend this rank until the hub has done what is asked for; return what that returned. Raises Killed."""
        if self._is_killed:  # and has asked again
            self._raise_in_lines()
            raise Killed
        self.at = self._line(walk_stack(sys._getframe(1)))
        self._request = request
        self.note()
        self._back.release()
        self._go.acquire()
        self._since = cpu_seconds()
        if self._is_killed:
            raise Killed
        return self.answer

    def settle(self) -> None:
        """Wait for all calls whose futures are asked for: what follows would wait for them in C++."""
        while self.futures:
            self.futures.pop(0).wait()

    def note(self) -> None:
        """Add to `spent` what this rank has computed since it was resumed, or this was called."""
        now = cpu_seconds()
        self.spent += now - self._since
        self._since = now

    def run_script(self) -> Any:
        """Run the script; return what a function returns."""
        with self.watcher.watch_rank(self), CudaIsCpu() if self._script.on_cpu else nullcontext():
            return self._script.run(self.state)

    @contextmanager
    def unbilled(self) -> Iterator[None]:
        """In the block, what this thread computes takes no time of the rank."""
        self.note()
        try:
            yield
        finally:
            self._since = cpu_seconds()

    def line(self) -> str:
        """Return the line of the script that this thread is at, such as "train.py:12"."""
        return self._line(walk_stack(sys._getframe(1)))

    def begin(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Called before each call of a module."""

    def end(self) -> None:
        """Called after each call of a module."""

    def backward(self, run: Callable[[], Any], call: "BackwardCall") -> Any:
        """Run a backward pass."""
        return run()

    def steps_now(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before each step of an optimizer."""

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after each step of an optimizer."""

    def seconds(self) -> float | None:
        """Return the time of this rank; None: it has no clock of its own."""
        return None

    def has_source(self, function: Any) -> bool:
        """Return whether the script, or a file beside it, defines a function."""
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        return code is not None and self.is_source(code.co_filename)

    def is_source(self, file: str) -> bool:
        """Return whether this is the script, or a file beside it."""
        return file.startswith(self._script.folder) and not file.startswith(_OURS)

    def wait_until(self, ready: Callable[[], bool], words: str, limit_s: float | None = None) -> bool:
        """Suspend this rank until other ranks have made it ready; return False if they have not within the limit."""
        found: bool = self.ask(partial(self.engine.wait_until, self, ready, words, limit_s))
        return found

    def start_process(self, run: Callable[[], object], number: int) -> None:
        """Run what a process does that the script starts: here and now."""
        run()
        self.engine.started.ended.add(number)
        self.ask(partial(self.engine.changed, self))

    def sleep(self, seconds: float) -> None:
        """Let so much time pass for this rank."""
        self.ask(partial(self.engine.sleep, self, seconds))

    def _run(self) -> None:
        _here.thread = self
        self._go.acquire()
        self._since = cpu_seconds()
        try:
            self.result = self.run_script()
        except Killed:
            pass
        except RunFailed as error:
            self.failure = error
        except BaseException as error:
            what = f"raised {one_line(error)}"
            if re.search("cuda|nccl|nvidia", what, re.IGNORECASE) and not torch.cuda.is_available():
                what += "; with --on_cpu, cuda and nccl mean the CPU"
            if isinstance(error, SystemExit):
                what = f"exited with {error.code}"
            frames = reversed([*walk_tb(error.__traceback__)])
            if not isinstance(error, SystemExit) or error.code:
                self.failure = RunFailed(f"rank {self.rank} {what}, at {self._line(frames)}")
        self._request = None
        self.note()
        self._back.release()

    def _raise_in_lines(self) -> None:
        """Raise Killed once more in the next line of the script: a bare `except` catches what is raised in a call."""

        def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            if event == "line":
                raise Killed
            return trace

        for frame, _ in walk_stack(sys._getframe(1)):
            if self.is_source(frame.f_code.co_filename):
                frame.f_trace = trace
        sys.settrace(lambda *_: None)

    def _line(self, frames: Iterable[tuple[FrameType, int]]) -> str:
        """Return the line, such as "train.py:12", of the first of these frames that is of the script's folder."""
        for frame, line in frames:
            if self.is_source(file := frame.f_code.co_filename):
                return f"{file[len(self._script.folder) :]}:{line}"
        return self.at


def _raise_in(thread: threading.Thread) -> None:
    """Raise Killed in a thread, as soon as it runs Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Killed))


os.register_at_fork(after_in_child=lambda: setattr(_here, "thread", None))  # a child of a rank is none


def here() -> RankThread | None:
    """Return the rank whose thread this is; None: it is no rank's."""
    return getattr(_here, "thread", None)
