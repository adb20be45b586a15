"""Processes that do not outlive their parent, however that ends, and orphans that do not outlive who adopts them."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transports.timing import now, sleep

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37  # <linux/prctl.h>
_END_S = 5.0  # for orphans that are killed, and may have started others


def die_with_parent() -> None:
    """Make the kernel kill this process, also if it is stopped, when the thread that made it ends; only on Linux.

    A process whose parent is gone already when it calls this is not killed: it must find out by other means.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def ending_orphans() -> Iterator[None]:
    """In the block, adopt descendants whose parents end; then kill those that are of other sessions; only on Linux.

    So a process that has detached itself from a child of this one, which leads a session of its own, ends too.
    """
    if sys.platform != "linux":
        yield
        return
    libc, former, before = ctypes.CDLL(None), ctypes.c_int(), _children_of_other_sessions()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(former))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
    try:
        yield
    finally:
        deadline = now() + _END_S
        while (orphans := _children_of_other_sessions() - before) and now() < deadline:
            for pid in orphans:  # no new process gets this id before this one has reaped it
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            sleep(0.01)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(former.value))


def _children_of_other_sessions() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may have ended
            _, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(parent) == os.getpid() and int(session) != os.getsid(0):
                found.add(int(path.parent.name))
    return found
