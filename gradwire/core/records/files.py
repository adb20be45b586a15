"""The files of a run: its tables and events, written together and read again."""

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from gradwire.core.records.atomic import AnyPath, naming, sync, temporary_of, write_together
from gradwire.core.records.events import CODE_MARKS, METERS, Events, chunks
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import EVALUATE_BYTES, VERSION_COLUMNS, columns_with
from gradwire.core.records.unfinished import EVENTS_SUFFIX, SUFFIXES, check_finished, folder_of, remove

CALIBRATION = "calibration.json"  # of a simulation, beside its runs
HASHES = ".hashes.npz"  # what --hashes keeps, for gradwire.diagnosis.why
TRACE_SUFFIX = ".trace.json"  # of what gradwire.pictures.timeline writes: not the metadata of a run
METADATA_KEYS = ("strategy", "n_gpus", "replicas_identical")  # without these a json is not the metadata of a run
_CAME_LATER = {"line", *VERSION_COLUMNS, *CODE_MARKS, *METERS, EVALUATE_BYTES}  # columns that older files may lack
_EVENT_TYPES = {name: kind if is_numeric_dtype(kind) else "str" for name, kind in Recorder().frame().dtypes.items()}


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
    plain = json.dumps(dict(metadata), default=lambda v: v.item() if isinstance(v, np.generic) else os.fspath(v))
    text = json.dumps(json.loads(plain, parse_constant=lambda _: None), indent=2) + "\n"
    files = (Path(directory) / f"{run_name}{suffix}" for suffix in SUFFIXES)
    paths = dict(zip(("events", "table", "metadata"), files, strict=True))
    contents = {Path(path): content for path, content in (others or {}).items()}
    # The records last: when all of them have their names, nothing else is missing.
    targets, folder = [*contents, *paths.values()], folder_of(directory, run_name)
    temporaries = [*map(temporary_of, contents), *(folder / path.name for path in paths.values())]
    contents |= {paths["table"]: table.to_csv(index=False).encode(), paths["metadata"]: text.encode()}
    folder.mkdir(exist_ok=True)
    try:
        with write_together(targets, temporaries):
            for temporary, path in zip(temporaries, targets, strict=True):
                with naming(path):
                    if path in contents:
                        temporary.write_bytes(contents[path])
                    else:
                        _write_events(temporary, events)
            sync(Path(directory))  # the folder, which says that they are unfinished
    finally:
        remove(folder)
    return paths


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
    return _load_csv(file, _EVENT_TYPES, {"value": ""}).fillna({"line": ""})


def load_table(path: AnyPath) -> pd.DataFrame:
    """Return the epoch table in the .csv of a run, as written.

    Columns that an older table does not have are empty. Raises OSError if the file cannot be read, ValueError if it
    does not hold an epoch table, or is unfinished.
    """
    check_finished(Path(path), ".csv")
    with open(path, encoding="utf-8") as file:
        kinds = columns_with(file.readline().strip().split(","))
    return _load_csv(Path(path), kinds, {name: "" for name, kind in kinds.items() if kind != "str"})


def _load_csv(path: Path, types: Mapping[str, Any], empty: Mapping[str, str]) -> pd.DataFrame:
    try:
        # Without keep_default_na=False, a strategy called "none" would be read as a missing value.
        with np.errstate(invalid="ignore"):  # of an infinite integer pandas warns before it refuses it
            table = pd.read_csv(path, dtype=types, na_values=empty, keep_default_na=False)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"damaged file: {error}") from error
    except (TypeError, OverflowError) as error:  # a value that does not fit its column: a fraction, or too large
        raise ValueError(f"a column holds what it cannot: {error}") from error
    if not set(types) - set(table) <= _CAME_LATER or list(table) != [name for name in types if name in table]:
        raise ValueError("not a table written by this project (other columns)")
    return table.reindex(columns=list(types)).astype(dict(types))


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
