"""The folder of the sockets by which processes are started and memory is handed out.

multiprocessing makes it, and removes it when its process ends, but not when that is killed: then the next run does.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import IO

from gradwire.core.records.errors import UsageError

_LONGEST = 107 - len("/pymp-12345678/listener-12345678")  # bytes of the folder it is in: the kernel's limit for sockets
_LOCK = "launcher"


@cache
def claim_folder() -> IO[str]:
    """Make the folder, where the path of a socket in it is not too long; remove those of launchers that were killed.

    Returns a file in it, which is locked as long as this process lives. Raises UsageError.
    """
    parent = _parent()
    former, tempfile.tempdir = tempfile.tempdir, parent
    try:
        folder = Path(util.get_temp_dir())
    finally:
        tempfile.tempdir = former
    hidden = folder / f".{_LOCK}"
    file = open(hidden, "w")  # noqa: SIM115 - open as long as this process lives
    fcntl.flock(file, fcntl.LOCK_EX)
    hidden.rename(folder / _LOCK)  # from here on it is known as a launcher's
    _remove_abandoned(folder.parent)
    return file


def remove_folder() -> None:
    """Remove the folder, for a process that ends without the interpreter's own end."""
    if claim_folder.cache_info().currsize:
        shutil.rmtree(Path(claim_folder().name).parent, ignore_errors=True)


def _parent() -> str:
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(os.fsencode(folder)) <= _LONGEST and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise UsageError(f"TMPDIR: needs a folder that can be written, of at most {_LONGEST} bytes; set another")


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"pymp-*/{_LOCK}"):
        with suppress(OSError):  # it may be another user's, or go at this moment
            file = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # any user may have put anything there
            try:
                status = os.fstat(file)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(file)
