"""Interrupts: the signals by which a user ends a run."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # how a user ends a run


@contextmanager
def interrupts_wait() -> Iterator[list[int]]:
    """Delay interrupts until after the block, which gets the list of those received."""
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


def number_of(interrupt: KeyboardInterrupt) -> int:
    """Return the signal that an interrupt came by, where it says so; else SIGINT."""
    return next((argument for argument in interrupt.args[:1] if isinstance(argument, int)), signal.SIGINT)
