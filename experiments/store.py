"""The kept results of one experiment: a tidy table and one file of metadata, instead of three files for each run.

FOLDER/EXPERIMENT.csv has one row per run, epoch and rank: `run`, the options in which the runs differ, and the columns
of a run's own table. FOLDER/EXPERIMENT.json says what all its runs share (`all`) and what is special to each (`runs`).
FOLDER/EXPERIMENT.staleness.csv counts, where gradients may be stale, how many of each run and worker were how stale.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.runs import strategy_class
from records.errors import UsageError, one_line
from records.events import CODE_MARKS, METERS
from records.files import write_together
from records.tables import COLUMNS, EVALUATE_BYTES, finished_epochs
from training import Options

_ELSEWHERE = (
    *("data_dir", "download", "timeout", "results_dir", "run_name", "save"),
    *("checkpoint_dir", "checkpoint_keep"),
)
"""Options that do not make a run what it is: where the files are, and how long a wait may take."""
_NOT_KEPT = ("arrivals", "sources")  # for replays and pages, which need the run's own files
_STALENESS_TYPES = {"run": "str", "worker": "int64", "staleness": "int64", "count": "int64"}
DIVERGED = "diverged"  # of a run whose loss became nan: the key of what it said; it has no rows


@dataclass
class Store:
    """The results of one experiment in a folder; every change is written at once, all files or none.

    table: rows of all runs. metadata: of each run, by its name. staleness: run, worker, staleness, count.
    """

    folder: Path
    experiment: str
    table: pd.DataFrame
    metadata: dict[str, dict[str, Any]]
    staleness: pd.DataFrame

    @classmethod
    def load(cls, folder: str | Path, experiment: str) -> "Store":
        """Return what is kept of an experiment, which may be nothing. Raises UsageError if a file is damaged."""
        folder = Path(folder)
        empty = pd.DataFrame(columns=["run", *COLUMNS]).astype(COLUMNS)
        store = cls(folder, experiment, empty, {}, pd.DataFrame(columns=list(_STALENESS_TYPES)))
        if not any(path.exists() for path in store.paths):
            return store
        try:
            table, metadata, staleness = store.paths
            store.table = _read_table(table)
            kept = json.loads(metadata.read_text(encoding="utf-8"))
            store.metadata = {name: _merge(kept["all"], own) for name, own in kept["runs"].items()}
            if staleness.exists():
                store.staleness = pd.read_csv(staleness, dtype=_STALENESS_TYPES)
            for entry in store.metadata.values():
                entry["options"]["strategy"], entry["machine"]["cores"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            names = ", ".join(path.name for path in store.paths)
            raise UsageError(
                f"{folder}: the results of {experiment} are damaged ({one_line(error)}); "
                f"take {names} from the repository again, or delete them and measure again"
            ) from error
        return store

    @property
    def paths(self) -> list[Path]:
        """The files: table, metadata, staleness."""
        return [self.folder / f"{self.experiment}{suffix}" for suffix in (".csv", ".json", ".staleness.csv")]

    def rows(self, run: str) -> pd.DataFrame:
        """Return the table of one run."""
        return self.table[self.table["run"] == run]

    def has(self, options: Options) -> bool:
        """Return whether this very run is there, whole and good, or is known to have diverged."""
        metadata = self.metadata.get(str(options.run_name))
        if metadata is None or not same_run(options, metadata["options"]):
            return False
        if DIVERGED in metadata:
            return True
        good = bool(metadata["replicas_identical"]) or not options.strategy.traits.agree
        return good and finished_epochs(self.rows(str(options.run_name))) == options.epochs

    def add(
        self, run: str, table: pd.DataFrame, metadata: Mapping[str, Any], staleness: pd.DataFrame | None = None
    ) -> None:
        """Keep a run; it replaces an older one of its name. Raises OSError."""
        parts = {"table": table.drop(columns="run", errors="ignore"), "staleness": staleness}
        for name, rows in parts.items():
            others = getattr(self, name)
            others = others[others["run"] != run]
            if rows is not None and len(rows):
                new = rows.drop(columns="run", errors="ignore").assign(run=run)[list(others.columns)]
                others = pd.concat([others, new], ignore_index=True) if len(others) else new
            setattr(self, name, others)
        kept = {name: value for name, value in metadata.items() if name not in _NOT_KEPT}
        kept["options"] = {name: value for name, value in metadata["options"].items() if name not in _ELSEWHERE}
        self.metadata[run] = kept
        self._write()

    def copy(self, run: str, other: "Store") -> None:
        """Keep a run that another experiment has. Raises OSError."""
        self.add(run, other.rows(run), other.metadata[run], other.staleness[other.staleness["run"] == run])

    def _write(self) -> None:
        shared, own = _split(self.metadata)
        varying = {name: values.get("options", {}) for name, values in own.items()}
        names = dict.fromkeys(name for values in varying.values() for name in values)
        columns = [name for name in names if name not in (*COLUMNS, *_ELSEWHERE)]
        table = self.table
        for place, column in enumerate(columns, start=1):
            text = {run: _text(values.get(column)) for run, values in varying.items()}
            table = table.assign(**{column: table["run"].map(text)})
            table.insert(place, column, table.pop(column))
        kept = json.dumps({"all": shared, "runs": own}, indent=1) + "\n"
        contents = [table.to_csv(index=False, float_format="%.7g"), kept]
        contents += [self.staleness.to_csv(index=False)] if len(self.staleness) else []
        with write_together(self.paths[: len(contents)]) as temporaries:
            for temporary, content in zip(temporaries, contents, strict=True):
                temporary.write_text(content, encoding="utf-8")


def measured(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the recorded options that make a run what it is."""
    values = {name: value for name, value in recorded.items() if name not in _ELSEWHERE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def same_run(options: Options, recorded: Mapping[str, Any]) -> bool:
    """Return whether a run with the options in `recorded` measured what `options` ask for.

    An option that the records do not have counts as its default: it came later.
    """
    wanted = measured(options.recorded())
    defaults = measured(Options(strategy=strategy_class(wanted["strategy"])()).recorded())
    return wanted == defaults | measured(recorded)


def _read_table(path: Path) -> pd.DataFrame:
    empty = {name: "" for name, kind in COLUMNS.items() if kind != "str"}
    types = {"run": "str", **COLUMNS}
    # Without keep_default_na=False, a strategy called "none" would be read as a missing value.
    table = pd.read_csv(path, dtype=types, na_values=empty, keep_default_na=False)
    lacking = {
        name: pd.Series(index=table.index, dtype=types[name])
        for name in (*CODE_MARKS, *METERS, EVALUATE_BYTES)
        if name not in table
    }
    return table.assign(**lacking)[list(types)]  # of runs before there were these columns


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)


def _split(entries: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what is the same in all entries, and of each what is not."""
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {name: {} for name in entries}
    for key in dict.fromkeys(key for entry in entries.values() for key in entry):
        having = {name: entry[key] for name, entry in entries.items() if key in entry}
        values = list(having.values())
        everywhere = len(having) == len(entries)
        if everywhere and all(value == values[0] for value in values):
            shared[key] = values[0]
        elif everywhere and all(isinstance(value, Mapping) for value in values):
            shared[key], parts = _split(having)
            for name, part in parts.items():
                own[name][key] = part
        else:
            for name, value in having.items():
                own[name][key] = value
    return shared, own


def _merge(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Put together again what `_split` has parted."""
    merged = dict(shared)
    for key, value in own.items():
        merged[key] = _merge(merged[key], value) if isinstance(merged.get(key), Mapping) else value
    return merged
