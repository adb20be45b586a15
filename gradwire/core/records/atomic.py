"""Files that appear whole or not at all, written under other names, then renamed; and locks on files and folders.

The system drops a lock when the process that holds it ends, however it does.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gradwire.core.records.errors import UsageError
from gradwire.core.records.interrupts import interrupts_wait

AnyPath = str | os.PathLike[str]


def check_writable(directory: AnyPath) -> None:
    """Create `directory` if needed; raise OSError if no file can be written in it."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    # Only writing tells: permission bits say nothing about root, full disks or read-only mounts.
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"?")


def check_writable_by(option: str, directory: AnyPath) -> None:
    """`check_writable` of the directory that an option names. Raises UsageError."""
    try:
        check_writable(directory)
    except OSError as error:
        raise UsageError(f"--{option}: cannot write in {directory}: {error.strerror or error}") from error


def check_output(path: AnyPath) -> None:
    """Raise OSError if no file can be written at `path`; it may replace a file, and nothing else that has the name."""
    path = Path(path)
    check_writable(path.parent)
    _check_replaceable(path)
    with suppress(FileNotFoundError):
        temporary_of(path).stat()  # raises if the name is too long


def _check_replaceable(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    special = path.is_symlink() and Path("/dev") in path.absolute().parents  # /dev/stdout, which may lead to a file
    if path.exists() and (special or not path.is_file()):  # as /dev/null, which would be a file from then on
        raise OSError(errno.EEXIST, "it is no file, and must not become one", str(path))


def temporary_of(path: Path) -> Path:
    """Return the temporary file that is renamed to `path` once it is complete."""
    return path.with_name(f".{os.getpid()}.{path.name}")


@contextmanager
def write_atomically(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary path (same directory and suffix) to write to; it becomes `path` if the block succeeds.

    If the block raises, the temporary file is removed and an older `path` stays as it was.
    """
    with write_together([Path(path)]) as (temporary,):
        yield temporary


@contextmanager
def write_together(paths: Sequence[Path], temporaries: Sequence[Path] | None = None) -> Iterator[Sequence[Path]]:
    """`write_atomically` for several files: all get their names, or none does.

    `temporaries`: the names that they have until then. An interrupt (SIGINT, SIGTERM, SIGHUP) acts when all have them.
    """
    for path in paths:
        _check_replaceable(path)
    temporaries = temporaries or [temporary_of(path) for path in paths]
    try:
        yield temporaries
        with interrupts_wait():
            _rename(temporaries, paths)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def _rename(temporaries: Sequence[Path], paths: Sequence[Path]) -> None:
    """Rename all files to their names, on the disk too; if one cannot be renamed, all paths stay as they were."""
    for temporary in temporaries:
        sync(temporary)
    with ExitStack() as at_the_end, ExitStack() as undo:
        former = {path: path.with_name(f".{os.getpid()}.former.{path.name}") for path in paths[:-1] if path.is_file()}
        for path, kept in former.items():
            at_the_end.callback(kept.unlink, missing_ok=True)
            try:
                os.link(path, kept)
            except OSError:  # not every file system can
                shutil.copy2(path, kept)
        for temporary, path in zip(temporaries, paths, strict=True):
            with naming(path):
                os.replace(temporary, path)
            undo.callback(os.replace, former[path], path) if path in former else undo.callback(path.unlink)
        undo.pop_all()
    for directory in {path.parent for path in paths}:
        sync(directory)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that a power failure does not tear them."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do this
            raise
    finally:
        os.close(number)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an OSError of the block name the file, not the temporary one, and not none, as with a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


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
