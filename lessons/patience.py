"""How long the judge waits for ranks: time in which a process wanted a processor, and had none, does not count.

So a loop is told within seconds on a machine that is quiet, and a right solution is not taken for one on a machine
that is busy.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from transports.timing import now

SILENT_S = 5.0  # how long a rank may compute, or sleep, before it asks for something
BUDGET_S = 6.0  # for all such waits of a check together: a right solution needs some tenths
_SLICE_S = 0.25
_BRIEF_S = 5e-4  # what is as short counts as it is


class Patience:
    """What is left of the time for waiting: of one wait, and of all."""

    def __init__(self, silent_s: float = SILENT_S, budget_s: float = BUDGET_S) -> None:
        self._silent_s, self._left = silent_s, budget_s
        self._waited = 0.0

    def begin(self) -> None:
        """Begin another wait."""
        self._waited = 0.0

    def wait(self, comes: Callable[[float], bool], pids: Sequence[int]) -> bool:
        """Wait until `comes(seconds)` is true, which itself waits so long; return whether it was, before time is up.

        `pids`: the processes that are waited for.
        """
        while self._waited < self._silent_s and self._left > 0:
            delayed = [_delay(pid) for pid in (*pids, os.getpid())]
            t0 = now()
            came = comes(min(_SLICE_S, self._silent_s - self._waited))
            if (spent := now() - t0) > _BRIEF_S:
                later = [_delay(pid) for pid in (*pids, os.getpid())]
                more = [max(0.0, after - before) for before, after in zip(delayed, later, strict=True)]
                spent = max(0.0, spent - max(more[:-1]) - more[-1])
            self._waited += spent
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
