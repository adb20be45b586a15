"""The folder of a run's checkpoints: which are there, and that one run at a time writes to it."""

import ctypes
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.core.records.atomic import is_locked, locked, sync
from gradwire.core.records.errors import UsageError

SCORES = "evaluation.csv"  # beside the checkpoints: what evaluate.py makes of them
PREFIX = "step-"
_LOCK = ".training"
_FORMER = ".former"


def listed(directory: str | Path) -> list[Path]:
    """Return the whole checkpoints in `directory`, oldest first."""
    steps = {}
    for path in Path(directory).glob(f"{PREFIX}*"):
        found = re.fullmatch(r"\d{8,18}", path.name.removeprefix(PREFIX))
        if found and path.name == name_of(int(found[0])) and (path / "run.json").is_file():
            steps[path] = int(found[0])
    return sorted(steps, key=lambda path: steps[path])


def latest(path: str | Path) -> Path:
    """Return the checkpoint at `path`, or the newest in the folder `path`. Raises UsageError."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            (Path(path) / "run.json").stat()  # from Python 3.14 on, is_file() hides why it cannot be read
            return Path(path)
        found = listed(path)
    except OSError as error:
        raise UsageError(f"--resume {str(path)[:100]}: cannot be read ({error.strerror}); give another") from error
    if not found:
        raise UsageError(f"--resume {path}: no checkpoint there; give a folder that --checkpoint_dir named")
    return found[-1]


def name_of(step: int) -> str:
    """Return the name of the checkpoint after `step` steps."""
    return f"{PREFIX}{step:08d}"


def remove(path: Path) -> None:
    """Remove a checkpoint: renamed first, so that a reader finds all of it, or nothing."""
    gone = path.with_name(f".{path.name}.gone")
    if path.exists():
        os.replace(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and have their names on the disk. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def put_in_place(new: Path, path: Path) -> None:
    """Give the folder `new` the name `path`, and remove what had it: at every moment there is one of them at `path`.

    Where the system cannot exchange two names, the former has none for a moment; if the process is killed in it,
    the next run in the folder gives it its name back. Raises OSError.
    """
    former = path.with_name(f".{path.name}{_FORMER}")
    if not path.exists():
        os.replace(new, path)
    elif _exchange(new, path):
        shutil.rmtree(new, ignore_errors=True)
    else:
        os.replace(path, former)
        os.replace(new, path)
        shutil.rmtree(former, ignore_errors=True)


def _exchange(path: Path, other: Path) -> bool:
    """Exchange the names of two files or folders; return whether the system can (Linux, on most file systems)."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(at_here, os.fsencode(path), at_here, os.fsencode(other), exchange) == 0


@contextmanager
def in_training(directory: Path) -> Iterator[None]:
    """Lock `directory`, to which a run is writing; the system drops the lock when this process ends.

    Half-written files of a killed run are removed. Raises UsageError if another run is writing there.
    """
    make_folder(directory)
    with locked(directory / _LOCK, f"--checkpoint_dir {directory}: another run is writing there; take another"):
        _remove_unfinished(directory)
        try:
            yield
        finally:
            _remove_unfinished(directory)


def is_training(directory: Path) -> bool:
    """Return whether a run is writing to `directory`; when its launcher has died, however it did, none is."""
    return is_locked(directory / _LOCK)


def _remove_unfinished(directory: Path) -> None:
    for former in directory.glob(f".{PREFIX}*{_FORMER}"):
        path = former.with_name(former.name[1:].removesuffix(_FORMER))
        if not path.exists():
            os.replace(former, path)
    for path in directory.glob(f".{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
