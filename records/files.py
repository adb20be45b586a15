"""The files of a run: its tables and events on disk, written atomically, and what it ran on."""

import errno
import gzip
import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from records.events import CODE_MARKS, METERS, Events, Recorder, chunks
from records.interrupts import interrupts_wait
from records.tables import COLUMNS, EVALUATE_BYTES, VERSION_COLUMNS
from records.unfinished import EVENTS_SUFFIX, check_finished, folder_of, remove

AnyPath = str | os.PathLike[str]
TRACE_SUFFIX = ".trace.json"  # of what records.timeline writes: not the metadata of a run
METADATA_KEYS = ("strategy", "n_gpus", "replicas_identical")  # without these a json is not the metadata of a run
_PROJECT = Path(__file__).resolve().parent.parent
_EVENT_TYPES = {name: kind if is_numeric_dtype(kind) else "str" for name, kind in Recorder().frame().dtypes.items()}


def check_writable(directory: AnyPath) -> None:
    """Create `directory` if needed; raise OSError if no file can be written in it."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    # Only writing tells: permission bits say nothing about root, full disks or read-only mounts.
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"?")


def check_output(path: AnyPath) -> None:
    """Raise OSError if no file can be written at `path`; it may replace a file, and nothing else that has the name."""
    path = Path(path)
    check_writable(path.parent)
    _check_replaceable(path)
    with suppress(FileNotFoundError):
        _temporary(path).stat()  # raises if the name is too long


def _check_replaceable(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    special = path.is_symlink() and Path("/dev") in path.absolute().parents  # /dev/stdout, which may lead to a file
    if path.exists() and (special or not path.is_file()):  # as /dev/null, which would be a file from then on
        raise OSError(errno.EEXIST, "it is no file, and must not become one", str(path))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{os.getpid()}.{path.name}")


@contextmanager
def write_atomically(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary path (same directory and suffix) to write to; it becomes `path` if the block succeeds.

    If the block raises, the temporary file is removed and an older `path` stays as it was.
    """
    with write_together([Path(path)]) as (temporary,):
        yield temporary


@contextmanager
def write_together(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """`write_atomically` for several files: all get their names, or none does.

    An interrupt (SIGINT, SIGTERM, SIGHUP) acts when all have them.
    """
    for path in paths:
        _check_replaceable(path)
    temporaries = [_temporary(path) for path in paths]
    try:
        yield temporaries
        with interrupts_wait():
            _rename(temporaries, paths)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def _rename(temporaries: Sequence[Path], paths: Sequence[Path]) -> None:
    """Give all files their names, on the disk too; if one cannot have it, all paths stay as they were."""
    for temporary in temporaries:
        sync(temporary)
    former = {path: path.with_name(f".{os.getpid()}.former.{path.name}") for path in paths[:-1] if path.is_file()}
    renamed: list[Path] = []
    try:
        for path, kept in former.items():
            _link(path, kept)
        for temporary, path in zip(temporaries, paths, strict=True):
            with _naming(path):
                os.replace(temporary, path)
            renamed.append(path)
    except BaseException:
        for path in renamed:
            if path in former:
                os.replace(former[path], path)
            else:
                path.unlink()
        raise
    finally:
        for kept in former.values():
            kept.unlink(missing_ok=True)
    for directory in {path.parent for path in paths}:
        sync(directory)


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # not every file system can
        shutil.copy2(path, other)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk, so that a power failure does not tear them."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do this
            raise
    finally:
        os.close(number)


def write_run(
    directory: AnyPath,
    run_name: str,
    events: Events,
    table: pd.DataFrame,
    metadata: Mapping[str, Any],
    others: Mapping[str, bytes] | None = None,
) -> dict[str, Path]:
    """Write RUN_NAME.events.csv.gz, .csv and .json; return their paths under the keys events, table, metadata.

    `others` are more files, path to content. All get their names, or none does; if the process is killed meanwhile,
    those that have it are known as unfinished. Times in the events file count in seconds from the run's earliest event;
    numbers in the metadata that JSON does not know (NaN, infinity) become null. Raises OSError, which names the file.
    """
    text = json.dumps(_plain(metadata), indent=2) + "\n"
    names = {"events": run_name + EVENTS_SUFFIX, "table": f"{run_name}.csv", "metadata": f"{run_name}.json"}
    paths = {key: Path(directory) / name for key, name in names.items()}
    contents = {paths["table"]: table.to_csv(index=False).encode(), paths["metadata"]: text.encode()}
    contents |= {Path(path): content for path, content in (others or {}).items()}
    folder = folder_of(directory, run_name)
    folder.mkdir(exist_ok=True)
    beside = [path.with_name(f".{os.getpid()}.{path.name}") for path in map(Path, others or ())]
    # The records last: when all of them have their names, nothing else is missing.
    temporaries = [*beside, *(folder / name for name in names.values())]
    targets = [*map(Path, others or ()), *paths.values()]
    try:
        for temporary, path in zip(temporaries, targets, strict=True):
            with _naming(path):
                if path in contents:
                    temporary.write_bytes(contents[path])
                else:
                    _write_events(temporary, events)
        sync(Path(directory))  # the folder, which says that they are unfinished
        with interrupts_wait():
            _rename(temporaries, targets)
            remove(folder)
            sync(Path(directory))
    finally:
        for temporary in beside:
            temporary.unlink(missing_ok=True)
        remove(folder)
    return paths


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an OSError of the block name the file, not the temporary one, nor none at all as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_events(path: Path, events: Events) -> None:
    start = pd.Series([chunk["t0"].min() for chunk in chunks(events)]).min()
    with gzip.open(path, "wt", 6, encoding="utf-8", newline="") as file:
        for i, chunk in enumerate(chunks(events)):
            times = {name: (chunk[name] - start).round(9) for name in ("t0", "t1")}
            chunk.assign(**times).to_csv(file, index=False, header=i == 0)


def load_events(path: AnyPath) -> pd.DataFrame:
    """Return the events of a run, as written; `path` is the .events.csv.gz, or DIRECTORY/RUN_NAME.

    `line` is empty in a file of before there was this column. Raises OSError if the file cannot be read, ValueError if
    it does not hold events, or is unfinished.
    """
    name = os.fspath(path)
    file = Path(name if name.endswith(EVENTS_SUFFIX) else name + EVENTS_SUFFIX)
    check_finished(file, EVENTS_SUFFIX)
    return _load_csv(file, _EVENT_TYPES, {"value": ""}, [("line",)]).fillna({"line": ""})


def load_table(path: AnyPath) -> pd.DataFrame:
    """Return the epoch table in the .csv of a run, as written.

    In a table of before there were METERS, or CODE_MARKS, or VERSION_COLUMNS, these are empty. Raises OSError if the
    file cannot be read, ValueError if it does not hold an epoch table, or is unfinished.
    """
    check_finished(Path(path), ".csv")
    empty = {name: "" for name, kind in COLUMNS.items() if kind != "str"}
    came_later = [(), METERS, (*CODE_MARKS, *METERS), (*VERSION_COLUMNS, *CODE_MARKS, *METERS)]
    came_later = [(*columns, EVALUATE_BYTES) for columns in came_later]
    return _load_csv(Path(path), COLUMNS, empty, came_later)


def _load_csv(
    path: Path, types: Mapping[str, Any], empty: Mapping[str, str], may_lack: Sequence[Sequence[str]] = ()
) -> pd.DataFrame:
    try:
        # Without keep_default_na=False, a strategy called "none" would be read as a missing value.
        with np.errstate(invalid="ignore"):  # of an infinite integer pandas warns before it refuses it
            table = pd.read_csv(path, dtype=types, na_values=empty, keep_default_na=False)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"damaged file: {error}") from error
    except (TypeError, OverflowError) as error:  # of what is no number of its column: a fraction, or too large
        raise ValueError(f"a column holds what it cannot: {error}") from error
    if any(list(table.columns) == [name for name in types if name not in lacking] for lacking in may_lack):
        return table.reindex(columns=list(types)).astype(dict(types))
    if list(table.columns) != list(types):
        raise ValueError("not a table written by this project (other columns)")
    return table


def load_metadata(path: AnyPath) -> dict[str, Any]:
    """Return the metadata in the .json of a run.

    Raises OSError if the file cannot be read, ValueError if it is not JSON, lacks METADATA_KEYS or is
    unfinished.
    """
    check_finished(Path(path), ".json")
    try:
        metadata = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(metadata, dict) or not all(key in metadata for key in METADATA_KEYS):
        raise ValueError(f"not the metadata of a run (it has {', '.join(METADATA_KEYS)})")
    return metadata


def _plain(value: Any) -> Any:
    """Return `value` in the types JSON knows: paths as text, NumPy numbers as Python's, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def machine() -> dict[str, Any]:
    """Return what a run ran on: python, torch, platform, cpu, cores (usable ones), memory_gib, gpus (names).

    On a machine with GPUs this starts CUDA in the calling process, so a process that forks must not call it before.
    """
    import torch  # here, because reading results must not wait for it

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def free_memory() -> int:
    """Return how many bytes of this machine's memory are free, caches included."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def git_commit(directory: AnyPath = _PROJECT) -> str | None:
    """Return the commit checked out in `directory` (by default this project), with "-dirty" if files were changed.

    None without git, or where `directory` is not the root of a repository: what is installed in a virtual environment
    is not of the repository that the environment lies in.
    """
    if not (Path(directory) / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", os.fspath(directory)]
    command += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
