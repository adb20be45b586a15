"""The files of a run: its tables and events, written together."""

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradwire.core.records.atomic import AnyPath, naming, sync, temporary_of, write_together
from gradwire.core.records.events import Events, chunks
from gradwire.core.records.unfinished import SUFFIXES, folder_of, remove


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
