"""One rank's process: what surrounds its work, and how its launcher gets the result."""

import os
import signal
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import cloudpickle

from gradwire.core.launchers.devices import set_up
from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.launchers.failures import do_work, failure_of
from gradwire.core.launchers.launcher import Job
from gradwire.core.transports.pipes import Endpoint
from gradwire.core.transports.timing import at_intervals

HEARTBEAT_S = 0.5


class _ToLauncher:
    """A rank's pipe to its launcher; two threads write to it."""

    def __init__(self, pipe: Connection, rank: int) -> None:
        self._pipe = pipe
        self._rank = rank
        self._lock = threading.Lock()

    def send(self, kind: str, value: Any = None) -> None:
        """Send one message; end this process at once if the launcher is gone."""
        # This copies tensors; torch's own pickling would share memory that is gone when this process is.
        message = cloudpickle.dumps((kind, value))
        try:
            with self._lock:
                self._pipe.send_bytes(message)
        except OSError:
            if self._rank == 0:
                print("error: the launcher is gone; the run has ended without records", file=sys.stderr, flush=True)
            os._exit(1)


def _quiet_about_dead_peers(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # multiprocessing's thread that hands out memory shows so that a peer died while it asked; the launcher tells that
    if not issubclass(kind, OSError | EOFError):
        sys.__excepthook__(kind, error, trace)


def rank_main(endpoint: Endpoint, pipe: Connection, job: Job) -> None:
    """Run one rank, in its own process."""
    from gradwire.core.transports.shared_memory import SharedMemory  # a launcher does not need it

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as inherited from the fork server; where there is none, from here on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a terminal that was closed: the launcher ends the ranks
    sys.excepthook = _quiet_about_dead_peers
    launcher = _ToLauncher(pipe, endpoint.rank)
    try:
        with at_intervals(HEARTBEAT_S, partial(launcher.send, "alive")):
            transport = SharedMemory(endpoint, set_up(job, endpoint.rank))
            result = do_work(job, transport, partial(launcher.send, "report"))
            transport.close()
            launcher.send("result", result)
    except SystemExit:
        raise  # the launcher reports its exit code
    except BaseException as error:
        launcher.send("failed", failure_of(error, range(endpoint.world_size)))
    # Without the interpreter's own end, which takes libraries down in an order that can hang. Nothing is left to do.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
