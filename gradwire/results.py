"""The files of runs, read again."""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from gradwire.core.records.atomic import AnyPath
from gradwire.core.records.events import CODE_MARKS, METERS, PHASES
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import EVALUATE_BYTES, SERVER, VERSION_COLUMNS, columns_with
from gradwire.core.records.unfinished import EVENTS_SUFFIX, check_finished

CALIBRATION = "calibration.json"  # of a simulation, beside its runs
HASHES = ".hashes.npz"  # what --hashes keeps, for gradwire.diagnosis.why
TRACE_SUFFIX = ".trace.json"  # of what gradwire.pictures.timeline writes: not the metadata of a run
METADATA_KEYS = ("strategy", "n_gpus", "replicas_identical")  # without these a json is not the metadata of a run
_CAME_LATER = {"line", *VERSION_COLUMNS, *CODE_MARKS, *METERS, EVALUATE_BYTES}  # columns that older files may lack
_EVENT_TYPES = {name: kind if is_numeric_dtype(kind) else "str" for name, kind in Recorder().frame().dtypes.items()}


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


def worker_spans(events: pd.DataFrame, roles: Sequence[str]) -> pd.DataFrame:
    """Return the spans that belong to a step: those of the workers, after the start (epoch 0)."""
    ranks = [rank for rank, role in enumerate(roles) if role != SERVER]
    return events[events["phase"].isin(PHASES) & (events["epoch"] > 0) & events["rank"].isin(ranks)]
