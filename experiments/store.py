"""Experiments that measure this machine: a tidy table and one file of metadata, instead of three files for each run.

FOLDER/EXPERIMENT.csv has one row per run, epoch and rank: `run`, the options in which the runs differ, and the columns
of a run's own table. FOLDER/EXPERIMENT.json says what all its runs share (`all`) and what is special to each (`runs`).
FOLDER/EXPERIMENT.staleness.csv counts, where gradients may be stale, how many of each run and worker were how stale.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.experiment import Experiment, attempt, diverged
from param_server_builtin import BuiltinParamServer
from records import files
from records.atomic import write_atomically, write_together
from records.errors import RunFailed, UsageError, one_line
from records.events import CODE_MARKS, METERS
from records.machine import git_commit, machine
from records.staleness import histogram
from records.tables import COLUMNS, EVALUATE_BYTES, finished_epochs
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import Strategy
from training import Options, names, run

BUILTIN: dict[str, type[Strategy]] = {kind.name: kind for kind in (BuiltinParamServer, BuiltinRingAllReduce)}
TUNING, TIMELINE = "tuning", "timeline"  # names of runs that find a learning rate, and whose events are drawn, so begin
DIVERGED = "diverged"  # of a run whose loss became nan: the key of what it said; it has no rows
_ELSEWHERE = (
    *("data_dir", "download", "timeout", "results_dir", "run_name", "save"),
    *("checkpoint_dir", "checkpoint_keep"),
)
"""Options that do not make a run what it is: where the files are, and how long a wait may take."""
_NOT_KEPT = ("arrivals", "sources")  # for replays and pages, which need the run's own files
_STALENESS_TYPES = {"run": "str", "worker": "int64", "staleness": "int64", "count": "int64"}
Result = tuple[pd.DataFrame, dict[str, Any], pd.DataFrame | None]  # of a run: its table, metadata and staleness


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of a strategy, which may be a baseline. Raises UsageError."""
    return BUILTIN[name] if name in BUILTIN else names.strategy_class(name)


class Store:
    """The results of one experiment in a folder; every change is written at once, all files or none.

    table: rows of all runs. metadata: of each run, by its name. staleness: run, worker, staleness, count.
    Raises UsageError if a file is damaged.
    """

    def __init__(self, folder: str | Path, experiment: str) -> None:
        self.folder, self.experiment = Path(folder), experiment
        self.table = pd.DataFrame(columns=["run", *COLUMNS]).astype(COLUMNS)
        self.metadata: dict[str, dict[str, Any]] = {}
        self.staleness = pd.DataFrame(columns=list(_STALENESS_TYPES))
        if not any(path.exists() for path in self.paths):
            return
        try:
            table, metadata, staleness = self.paths
            self.table = _read_table(table)
            kept = json.loads(metadata.read_text(encoding="utf-8"))
            self.metadata = {name: _merge(kept["all"], own) for name, own in kept["runs"].items()}
            if staleness.exists():
                self.staleness = pd.read_csv(staleness, dtype=_STALENESS_TYPES)
            for entry in self.metadata.values():
                entry["options"]["strategy"], entry["machine"]["cores"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            paths = ", ".join(path.name for path in self.paths)
            raise UsageError(
                f"{folder}: the results of {experiment} are damaged ({one_line(error)}); "
                f"take {paths} from the repository again, or delete them and measure again"
            ) from error

    @property
    def paths(self) -> list[Path]:
        """The files: table, metadata, staleness."""
        return [self.folder / f"{self.experiment}{suffix}" for suffix in (".csv", ".json", ".staleness.csv")]

    def rows(self, run: str) -> pd.DataFrame:
        """Return the table of one run."""
        return self.table[self.table["run"] == run]

    def events_of(self, run: str) -> Path:
        """Return the path of the events of a run that is drawn."""
        return self.folder / f"{run}{files.EVENTS_SUFFIX}"

    def has(self, run: Options) -> bool:
        """Return whether this very run is there, complete and good, or is known to have diverged."""
        name = str(run.run_name)
        metadata = self.metadata.get(name)
        if metadata is None or not same_run(run, metadata["options"]):
            return False
        if DIVERGED in metadata:
            return True
        good = bool(metadata["replicas_identical"]) or not run.strategy.traits.agree
        good = good and (not name.startswith(TIMELINE) or self.events_of(name).exists())
        return good and finished_epochs(self.rows(name)) == run.epochs

    def add(self, run: Options, result: Result) -> None:
        """Keep a run; it replaces an older one of its name. Raises OSError."""
        name, (table, metadata, staleness) = str(run.run_name), result
        for part, rows in (("table", table), ("staleness", staleness)):
            kept = getattr(self, part)
            kept = kept[kept["run"] != name]
            if rows is not None and len(rows):
                new = rows.assign(run=name)[list(kept.columns)]
                kept = pd.concat([kept, new], ignore_index=True) if len(kept) else new
            setattr(self, part, kept)
        self.metadata[name] = {key: value for key, value in metadata.items() if key not in _NOT_KEPT}
        options = {key: value for key, value in metadata["options"].items() if key not in _ELSEWHERE}
        self.metadata[name]["options"] = options
        self.write()

    def copy(self, run: Options, other: "Store") -> None:
        """Keep a run that another experiment has. Raises OSError."""
        name = str(run.run_name)
        self.add(run, (other.rows(name), other.metadata[name], other.staleness[other.staleness["run"] == name]))

    def write(self) -> None:
        """Write the files. Raises OSError."""
        shared, own = _split(self.metadata)
        varying = {name: values.get("options", {}) for name, values in own.items()}
        columns = dict.fromkeys(name for values in varying.values() for name in values if name not in COLUMNS)
        table = self.table
        for place, column in enumerate(columns, start=1):
            values = table["run"].map({run: _text(options.get(column)) for run, options in varying.items()})
            table = pd.concat([table.iloc[:, :place], values.rename(column), table.iloc[:, place:]], axis=1)
        kept = json.dumps({"all": shared, "runs": own}, indent=1) + "\n"
        contents = [table.to_csv(index=False, float_format="%.7g"), kept]
        contents += [self.staleness.to_csv(index=False)] if len(self.staleness) else []
        with write_together(self.paths[: len(contents)]) as temporaries:
            for temporary, content in zip(temporaries, contents, strict=True):
                temporary.write_text(content, encoding="utf-8")


class Measured(Experiment):
    """An experiment whose runs are real, one after the other, and kept in a Store."""

    def open(self, folder: Path, quick: bool) -> Store:
        """Return what is kept. Raises UsageError if it is damaged."""
        return Store(folder, self.name)

    def results(self, kept: Store, runs: list[Options], common: dict[str, Any]) -> Iterator[tuple[Options, Any]]:
        """Yield each run with its Result, or the error."""
        for one in runs:
            yield one, attempt(partial(_make, replace(one, **common), kept))


def _make(one: Options, kept: Store) -> Result:
    """Make one run. That a learning rate of the grid diverges is a result. Raises RunFailed, UsageError, OSError."""
    name, path = str(one.run_name), Path(one.results_dir) / str(one.run_name)
    try:
        run(one, quiet=True)
        if name.startswith(TIMELINE):
            with write_atomically(kept.events_of(name)) as temporary:
                shutil.copy(f"{path}{files.EVENTS_SUFFIX}", temporary)
        stale = one.events and one.strategy.traits.asynchronous and not name.startswith(TUNING)
        staleness = histogram(files.load_events(path)) if stale else None
        return files.load_table(f"{path}.csv"), files.load_metadata(f"{path}.json"), staleness
    except RunFailed as error:
        if not name.startswith(TUNING) or not diverged(error):
            raise
        made = {"options": one.recorded(), "machine": machine(), "git_commit": git_commit()}
        return pd.DataFrame(), made | {DIVERGED: str(error)}, None
    finally:
        shutil.rmtree(one.results_dir, ignore_errors=True)


def measured(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the recorded options that make a run what it is."""
    values = {name: value for name, value in recorded.items() if name not in _ELSEWHERE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def same_run(options: Options, recorded: Mapping[str, Any]) -> bool:
    """Return whether a run with the options in `recorded` measured what `options` ask for, if `auto` on any device.

    An option that the records do not have counts as its default: it came later.
    """
    wanted = measured(options.recorded())
    defaults = measured(Options(strategy=strategy_class(wanted["strategy"])()).recorded())
    device = {"device": recorded["device"]} if options.device == "auto" else {}
    return wanted | device == defaults | measured(recorded)


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
