"""The folder of an unfinished run: its events as they come, then its records, until all have their final names.

    RESULTS_DIR/.RUN_NAME.unfinished/lock            locked until the run ends, however it ends
    RESULTS_DIR/.RUN_NAME.unfinished/rank-0.events   the events of a rank

As long as the folder is there, files of that name beside it are no records: every reader refuses them. What a run
that was killed has left, the next run removes.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.core.records.atomic import AnyPath, is_locked, locked
from gradwire.core.records.errors import UsageError

EVENTS_SUFFIX = ".events.csv.gz"
SUFFIXES = (EVENTS_SUFFIX, ".csv", ".json")  # of a run's files
_UNFINISHED = ".unfinished"
_LOCK = "lock"
_PATIENCE_S = 10.0


def folder_of(directory: AnyPath, run_name: str) -> Path:
    """Return the folder for the files of an unfinished run."""
    return Path(directory) / f".{run_name}{_UNFINISHED}"


def check_finished(path: Path, suffix: str) -> None:
    """Raise ValueError if the file of a run at `path`, which ends with `suffix`, is one of those left unfinished."""
    folder = folder_of(path.parent, path.name.removesuffix(suffix))
    if folder.exists() and not _has_all(folder):
        raise ValueError("unfinished: its run was ended while it wrote its records; the next run there removes them")


def check_name(directory: AnyPath, run_name: str) -> None:
    """Raise UsageError if there are records of a run of this name, or it is running."""
    folder = folder_of(directory, run_name)
    if _is_running(folder):
        raise UsageError(f"--run_name {run_name}: such a run is writing to {directory}; give another --run_name")
    if folder.exists() and not _has_all(folder):
        return  # the files beside it belong to it
    for path in _records_of(folder):
        if path.exists():
            raise UsageError(
                f"--run_name {run_name}: {path} exists already; give another --run_name, or delete that run's files"
            )


@contextmanager
def run_lock(directory: AnyPath, run_name: str) -> Iterator[Path]:
    """Hold the name of a run, and yield its folder, which is removed after the block.

    What killed runs have left in `directory` is removed. Raises UsageError if the name is taken, or cannot be held.
    """
    folder = folder_of(directory, run_name)
    refusal = f"--results_dir {directory}: another process holds a lock on it"
    try:
        with locked(Path(directory), refusal, _PATIENCE_S):  # so that one run at a time looks which names are free
            check_name(directory, run_name)
            for other in Path(directory).glob(f".*{_UNFINISHED}*"):
                if not _is_running(other):
                    _remove_with_records(other)
            folder.mkdir()
            lock = open(folder / _LOCK, "w")  # noqa: SIM115 - open until the run ends
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UsageError(f"--results_dir: cannot write in {directory}: {error.strerror or error}") from error
    with lock:
        try:
            yield folder
        finally:
            with suppress(FileNotFoundError):
                # When the records were written, and deleted since, another run may have the name.
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / _LOCK)):
                    remove(folder)


def remove(folder: Path) -> None:
    """Remove the folder: files that have their final names are finished."""
    gone = folder.with_name(f"{folder.name}.gone")
    if folder.exists():
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_with_records(folder: Path) -> None:
    """Remove the files of a killed run, and the folder last, since it marks the others as unfinished."""
    if folder.name.endswith(_UNFINISHED) and not _has_all(folder):  # there were no records when the run began
        for path in _records_of(folder):
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _records_of(folder: Path) -> list[Path]:
    name = folder.name[1:].removesuffix(_UNFINISHED)
    return [folder.parent / f"{name}{suffix}" for suffix in SUFFIXES]


def _has_all(folder: Path) -> bool:
    """Return whether all records of the run have their names: then it was killed before it removed its folder."""
    return all(path.exists() and not (folder / path.name).exists() for path in _records_of(folder))


def _is_running(folder: Path) -> bool:
    """Return whether the run of this folder is alive, or cannot be known to be dead."""
    return folder.exists() and is_locked(folder / _LOCK)
