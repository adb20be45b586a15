"""Interrupts, and how they are put off for a moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # how a user ends a run


@contextmanager
def interrupts_wait() -> Iterator[list[int]]:
    """Let interrupts act after the block, which is given the list of those that have come."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield came
        return
    handlers = {n: signal.signal(n, lambda number, _: came.append(number)) for n in INTERRUPTS}
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arrived in came[:1]:
            signal.raise_signal(arrived)
