"""The fork server, from which new processes are made: it has already loaded the modules that they import.

The server is multiprocessing's own. It may die or be stopped as any other process: then it is ended, and what waits for
it fails.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext

from gradwire.core.launchers.environment import environment
from gradwire.core.launchers.sockets import claim_folder
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.interrupts import interrupts_wait
from gradwire.core.transports.timing import at_intervals, sleep

_PRELOADED = ["torch"]
_LEAST_PATIENCE_S = 60.0  # it may have to load torch first, on a machine that is busy
_INTERRUPTED_S = 3.0  # how long a start may still take once it is interrupted
_TICK_S = 0.25


def preload(module: str) -> None:
    """Make the fork server import `module` too when it starts, so that ranks find it loaded."""
    if module not in _PRELOADED:
        _PRELOADED.append(module)


def start_context() -> ForkServerContext | SpawnContext:
    """Return how processes are started: by a fork server that has torch loaded already, where there is one."""
    # Elsewhere (macOS) a process that has loaded torch cannot safely be forked.
    if sys.platform != "linux" or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # To the kernel a parent is a thread: only the main thread's fork server can have itself killed with its parent.
    in_main_thread = threading.current_thread() is threading.main_thread()
    context.set_forkserver_preload(
        [*(["gradwire.core.launchers.dies_with_parent"] if in_main_thread else []), *_PRELOADED]
    )
    return context


def warm_up() -> None:
    """Start the fork server in the background: it loads torch while the caller does other things.

    Raises UsageError, RunFailed.
    """
    try:
        claim_folder()
        if start_context().get_start_method() == "forkserver":
            # The server silently skips modules that it does not find, and looks in the current folder only.
            with environment(PYTHONPATH=os.pathsep.join(path for path in sys.path if path)):
                _ensure_running()
    except OSError as error:
        raise RunFailed(_why(error, gave_up=False)) from error


def _ensure_running() -> None:
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        forkserver.ensure_running()
        return
    # Ctrl-C reaches the whole group, as does SIGHUP of a terminal that is closed, but it is the launcher that ends the
    # ranks, with one message: they inherit that both are blocked. Neither is lost meanwhile, as it would be if it were
    # ignored: it arrives after the block.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # first, because it unblocks SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})


def _pid() -> int | None:
    return getattr(forkserver._forkserver, "_forkserver_pid", None)


def end_fork_server() -> None:
    """Kill the fork server, if there is one: waiting for it raises an error. The next start makes a new one."""
    if (pid := _pid()) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def death_of_fork_server() -> str:
    """Return how the fork server has ended; "" if it has not, or there is none."""
    pid = _pid()
    if pid is None:
        return ""
    for _ in range(4):  # a client may notice the loss before its parent does
        try:
            # Not reaped: multiprocessing will do that.
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ""
        if end:
            how = "ended with exit code" if end.si_code == os.CLD_EXITED else "was killed by"
            return f"{how} {end.si_status if end.si_code == os.CLD_EXITED else signal.Signals(end.si_status).name}"
        sleep(_TICK_S)
    return ""


@contextmanager
def starting(timeout: float) -> Iterator[None]:
    """In the block, processes are started; Ctrl-C, SIGTERM and SIGHUP act after it: during it, not all could be ended.

    A fork server that does not answer, for `timeout` seconds or a minute, is ended; 3 s after an interrupt already.
    Raises RunFailed, in one line, on an error.
    """
    left, gave_up = max(timeout, _LEAST_PATIENCE_S), False

    def watch() -> None:
        nonlocal left, gave_up
        left = (min(left, _INTERRUPTED_S) if came else left) - _TICK_S  # ticks stop when this process is stopped
        if left <= 0 and not gave_up:
            gave_up = True
            end_fork_server()

    with interrupts_wait() as came, at_intervals(_TICK_S, watch):
        try:
            yield
        except (OSError, EOFError) as error:
            raise RunFailed(_why(error, gave_up)) from error


def _why(error: Exception, gave_up: bool) -> str:
    if gave_up:
        return "the processes could not be started: the fork server, from which they are made, did not answer; stopped?"
    if how := death_of_fork_server():
        return f"the processes could not be started: the fork server, from which they are made, {how}; out of memory?"
    return f"the processes could not be started: {getattr(error, 'strerror', None) or error or 'no answer'}"
