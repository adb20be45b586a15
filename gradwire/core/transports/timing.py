"""The clock of this machine, and one for limits, which does not count the time in which a process stood still.

Nothing else here imports `time`: everybody asks the transport for the time, so that a transport may keep its own.
These are the functions of `time` themselves, since every message asks for the time several times.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

now = time.perf_counter  # seconds of a clock that all processes of this machine share
sleep = time.sleep
cpu_seconds = time.thread_time  # seconds that the calling thread has computed
process_seconds = time.process_time  # seconds that all threads of this process have computed

SLICE_S = 0.25  # a wait with a limit looks at the clock again after at most this


@contextmanager
def at_intervals(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call `call` every `seconds` during the block, in a thread of its own."""
    over = threading.Event()

    def keep_calling() -> None:
        while not over.wait(seconds):
            call()

    thread = threading.Thread(target=keep_calling, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class RunningClock:
    """The seconds in which this process was running, for limits: of the time between two calls, at most SLICE_S count.

    A process that was stopped (Ctrl-Z, a batch system's SIGSTOP, a suspended machine) comes back to a clock that has
    hardly moved. So a wait with a limit waits in slices of at most SLICE_S, and calls this after each of them.
    """

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._seconds = 0.0

    def __call__(self) -> float:
        """Return the seconds counted so far."""
        with self._lock:
            at = self._clock()
            self._seconds += min(at - self._last, SLICE_S)
            self._last = at
            return self._seconds

    def slices(self, limit: float) -> Iterator[float]:
        """Yield how long to wait next, at most SLICE_S, as long as fewer than `limit` seconds have been counted."""
        remaining, deadline = limit, self() + limit
        while remaining > 0:
            yield min(remaining, SLICE_S)
            remaining = deadline - self()
