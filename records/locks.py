"""Locks on files and folders, which the system drops when the process that holds one ends, however it does."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from records.errors import UsageError


@contextmanager
def locked(path: Path, refusal: str, patience: float = 1.0) -> Iterator[None]:
    """Hold the lock on a folder, or on a file, which is made; raise UsageError with `refusal` if another process does.

    Tried for some seconds, since `is_locked` takes the lock for a moment. Raises OSError.
    """
    give_up = time.monotonic() + patience
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise UsageError(refusal) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(number)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on the file at `path`, or that cannot be known."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is locked; or it is another user's
        return True
    return False
