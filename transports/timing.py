"""The clock of this machine.

Nothing else here imports `time`: everybody asks the transport for the time, so that a transport may keep its own.
"""

import time


def now() -> float:
    """Return the seconds of a clock that all processes of this machine share."""
    return time.perf_counter()


def sleep(seconds: float) -> None:
    """Do nothing for `seconds`."""
    time.sleep(seconds)


def cpu_seconds() -> float:
    """Return the seconds that the calling thread has computed."""
    return time.thread_time()
