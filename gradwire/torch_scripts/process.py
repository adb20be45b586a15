"""What a rank finds in place of functions that act on its process, which it shares with the other ranks."""

import multiprocessing
import multiprocessing.context
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from gradwire.torch_scripts.threads import here

_PID = os.getpid()
_OWNERS: tuple[Any, ...] = (multiprocessing, torch.multiprocessing)
_CONTEXT: Any = multiprocessing.context._default_context


def replacements() -> list[tuple[Any, str, Any]]:
    """Return (owner, name, value) of each attribute that is replaced while a script runs."""
    ns = 10**9
    return [
        (time, "time", _clock(time.time)), (time, "time_ns", _clock(time.time_ns, ns)),
        (time, "perf_counter", _clock(time.perf_counter)), (time, "perf_counter_ns", _clock(time.perf_counter_ns, ns)),
        (time, "sleep", _sleep(time.sleep)),
        (signal, "signal", _signal(signal.signal)), (signal, "getsignal", _getsignal(signal.getsignal)),
        (os, "_exit", _exit(os._exit)), (os, "fork", _fork(os.fork)), (os, "system", _system(os.system)),
        (subprocess.Popen, "__init__", _start(subprocess.Popen.__init__)),
        (BaseProcess, "start", _run(BaseProcess.start)),
        *((owner, "set_start_method", _set(multiprocessing.set_start_method)) for owner in _OWNERS),
        (_CONTEXT, "_actual_context", _CONTEXT._actual_context),  # as it is, again at the end
    ]  # fmt: skip


def _clock(real: Callable[[], Any], per_second: int = 1) -> Callable[[], Any]:
    """Return a clock that shows a rank its own time. `monotonic` stays: libraries wait for real events by it."""
    start = real()

    def read() -> Any:
        seconds = None if (rank := here()) is None else rank.seconds()
        return real() if seconds is None else start + type(start)(seconds * per_second)

    return read


def _sleep(real: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        if (rank := here()) is None:
            real(seconds)
        else:
            rank.sleep(seconds)

    return sleep


def _signal(real: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    """Return `signal.signal`, which in a rank keeps the handler: no signal reaches a rank."""

    def handle(number: int, handler: Any) -> Any:
        if (rank := here()) is None:
            return real(number, handler)
        before = signal.getsignal(number)
        rank.state.handlers[number] = handler
        return before

    return handle


def _getsignal(real: Callable[[int], Any]) -> Callable[[int], Any]:
    def get(number: int) -> Any:
        rank = here()
        return real(number) if rank is None else rank.state.handlers.get(number, signal.SIG_DFL)

    return get


def _exit(real: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return `os._exit`, which ends the rank; in a child of this process, the child."""

    def leave(status: int) -> None:
        if here() is None or os.getpid() != _PID:
            real(status)
        sys.exit(status)

    return leave


def _fork(real: Callable[[], int]) -> Callable[[], int]:
    def fork() -> int:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if here() is not None and not caller.startswith("multiprocessing."):
            raise NotImplementedError(
                "os.fork: ranks are threads of one process, of which a fork has only one; start a subprocess"
            )
        return real()

    return fork


def _system(real: Callable[[str], int]) -> Callable[[str], int]:
    """Return `os.system`, whose command has the environment of the rank."""

    def run(command: str) -> int:
        if here() is None:
            return real(command)
        code = subprocess.call(command, shell=True)
        return code << 8 if code >= 0 else -code

    return run


def _start(real: Callable[..., None]) -> Callable[..., None]:
    """Return the start of a child, which has the environment of the rank."""
    at = 10  # of `env` among the arguments

    def start(self: Any, *arguments: Any, **more: Any) -> None:
        if here() is not None and len(arguments) <= at and more.get("env") is None:
            more["env"] = dict(os.environ)
        real(self, *arguments, **more)

    return start


def _set(real: Callable[..., None]) -> Callable[..., None]:
    """Return `set_start_method`, which each rank may call once, as each process may."""

    def choose(method: str | None, force: bool = False) -> None:
        real(method, force=force or here() is not None)

    return choose


def _run(real: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the start of a process. It is a rank if it runs a function of a script that is in no group yet."""

    def start(process: Any) -> None:
        rank, n = here(), int(os.environ.get("WORLD_SIZE", "1"))
        run = process._target if type(process).run is BaseProcess.run else type(process).run
        if rank is None or not rank.has_source(run) or dist.is_initialized():
            real(process)
        else:
            process._popen = rank.starter.start(process.run, n)

    return start
