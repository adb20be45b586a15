"""Interrupts: how they end a program that is still loading, and how they are put off for a moment."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from records.output import open_standard_streams

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # how a user ends a run


def end_while_loading(kept: str, clean_up: Callable[[], object] = lambda: None) -> None:
    """Open the standard streams that are closed; have an interrupt end this process at once.

    An interrupt then calls `clean_up` and says in one line what is `kept`.

    For a script that imports for seconds: an exception that a signal raises amid an import may be lost in it, and may
    be passed through C++ code that aborts.
    """

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # one is enough
        clean_up()
        with suppress(OSError):  # its reader may have gone
            os.write(2, f"\nerror: ended by {signal.Signals(number).name}; {kept}\n".encode())
        os._exit(128 + number)

    open_standard_streams()
    for number in INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as it is in the background, and under nohup
            signal.signal(number, end)


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
