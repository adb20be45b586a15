"""Limits the time of a student's code: time in which it was ready to run, but had no processor, does not count.

So an endless loop is found within seconds on a quiet machine, and a right solution is not taken for one on a busy
machine.
"""

import os
from collections.abc import Callable
from pathlib import Path

from transports.timing import now

_SLICE_S = 0.25
_BRIEF_S = 5e-4  # what is as short counts as it is


class Patience:
    """The seconds that are left for all waits together."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def wait(self, comes: Callable[[float], object], *pids: int) -> bool:
        """Wait for these processes until `comes(seconds)`, which waits so long, is true; return whether it was."""
        while self._left > 0:
            delayed = [_delay(pid) for pid in (*pids, os.getpid())]
            t0 = now()
            came = comes(_SLICE_S)
            if (spent := now() - t0) > _BRIEF_S:
                later = [_delay(pid) for pid in (*pids, os.getpid())]
                more = [max(0.0, after - before) for before, after in zip(delayed, later, strict=True)]
                spent = max(0.0, spent - max(more[:-1]) - more[-1])
            self._left -= spent
            if came:
                return True
        return False


def _delay(pid: int) -> float:
    """Return how many seconds a process was ready to run and did not, since it began; 0 where the system keeps none."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
