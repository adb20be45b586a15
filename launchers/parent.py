"""Processes that do not outlive their parent, however that ends."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent() -> None:
    """Make the kernel kill this process, also if it is stopped, when the thread that made it ends; only on Linux.

    A process whose parent is gone already when it calls this is not killed: it must find out by other means.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
