"""Experiments that measure this machine: runs on processes, one after the other.

EXPERIMENT.csv has the rows of the runs' own tables, and `run`. EXPERIMENT.json has the machine, the options that all
runs share, and for each run (`runs`) its other options and facts.
"""

import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.grid import Experiment, Store, attempt, diverged
from gradwire import Options, names, results, run
from gradwire.baselines.param_server_builtin import BuiltinParamServer
from gradwire.baselines.ring_all_reduce_builtin import BuiltinRingAllReduce
from gradwire.core.records.atomic import write_atomically
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.machine import git_commit, machine
from gradwire.core.records.tables import COLUMNS, finished_epochs
from gradwire.core.records.unfinished import EVENTS_SUFFIX
from gradwire.pictures.staleness import histogram
from strategies import Strategy

BUILTIN: dict[str, type[Strategy]] = {kind.name: kind for kind in (BuiltinParamServer, BuiltinRingAllReduce)}
TUNING, TIMELINE = "tuning", "timeline"  # names of runs that find a learning rate, and whose events are drawn, so begin
DIVERGED = "diverged"  # of a run whose loss became nan: what it said; it has no rows
STALENESS = "staleness"  # how many gradients of each worker were how stale, where they may be
_SAID = ("options", "replicas_identical", "bytes", "git_commit", DIVERGED, STALENESS)  # of each run
_ELSEWHERE = {"data_dir", "download", "timeout", "results_dir", "run_name", "save", "checkpoint_dir", "checkpoint_keep"}
"""Options that do not make a run what it is: where the files are, and how long a wait may take."""
_QUICK_MODELS = {"lenet": "benchmarks.networks:cnn"}  # learns on pictures of 8 x 8 pixels, too
_QUICK_SIZES = {1_000: 300, 2_560: 1_280, 6_000: 384, 10_000: 600, 20_000: 0}  # digits has 1,437 for training
Result = tuple[pd.DataFrame, dict[str, Any]]  # of a run: its table, and its facts


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of a strategy, which may be a baseline. Raises UsageError."""
    return BUILTIN[name] if name in BUILTIN else names.strategy_class(name)


class Runs(Store):
    """The runs of an experiment that measures this machine. runs: the facts of each, by its name."""

    columns = {"run": "str", **COLUMNS}

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The facts of each run, by its name."""
        return self.facts.setdefault("runs", {})

    def load(self, table: pd.DataFrame) -> None:
        """Take over what was read; each run has all its options again."""
        self.table = table[list(self.columns)]
        for entry in self.runs.values():
            entry["options"] = self.facts["options"] | entry["options"]

    def written(self) -> dict[str, Any]:
        """Return the facts, the options that all runs share apart."""
        every = [entry["options"] for entry in self.runs.values()]
        shared = dict(item for item in every[0].items() if all(item in options.items() for options in every))
        own = {
            name: entry | {"options": {key: value for key, value in entry["options"].items() if key not in shared}}
            for name, entry in self.runs.items()
        }
        return self.facts | {"options": shared, "runs": own}

    def rows(self, run: str) -> pd.DataFrame:
        """Return the table of one run."""
        return self.table[self.table["run"] == run]

    def staleness(self, run: str) -> pd.DataFrame:
        """Return how many gradients (count) of each worker were how stale; none where none can be."""
        return pd.DataFrame(self.runs[run].get(STALENESS, []), columns=["worker", "staleness", "count"], dtype="int64")

    def events_of(self, run: str) -> Path:
        """Return the path of the events of a run that is drawn."""
        return self.folder / f"{run}{EVENTS_SUFFIX}"

    def has(self, run: Options) -> bool:
        """Return whether this very run is there, complete and good, or is known to have diverged."""
        name = str(run.run_name)
        entry = self.runs.get(name)
        if entry is None or not same_run(run, entry["options"]):
            return False
        if DIVERGED in entry:
            return True
        good = bool(entry["replicas_identical"]) or not run.strategy.traits.agree
        good = good and (not name.startswith(TIMELINE) or self.events_of(name).exists())
        return good and finished_epochs(self.rows(name)) == run.epochs

    def add(self, run: Options, result: Result) -> None:
        """Keep a run; it replaces an older one of its name. Raises OSError."""
        name, (table, said) = str(run.run_name), result
        self.runs[name] = {key: said[key] for key in _SAID if key in said} | {"options": measured(said["options"])}
        self.table = self.table[self.table["run"] != name]
        self.append(table.assign(run=name).reindex(columns=list(self.columns)))


class Measured(Experiment):
    """An experiment whose runs are real, one after the other. `quick`: on digits, with the first seed."""

    seeds: tuple[int, ...] = (0,)  # of quick runs

    @abstractmethod
    def about(self, options: Options) -> dict[str, Any]:
        """Return what a run is called in tables: columns and their values."""

    def open(self, folder: Path) -> Runs:
        """Return the kept runs. Raises UsageError if a file is damaged."""
        kept = Runs(folder, self.name)
        kept.facts.setdefault("machine", machine())
        return kept

    def small(self, options: Options) -> Options | None:
        """Return the run on digits, with enough steps, or large enough ones, for a network to learn something."""
        if options.seed not in self.seeds:
            return None
        return replace(
            options, dataset="digits", model=_QUICK_MODELS.get(options.model, options.model), epochs=2 * options.epochs,
            train_size=_QUICK_SIZES.get(options.train_size, options.train_size),
            lr=options.lr * (5 if options.momentum else 1),
            run_name=f"{options.run_name}-quick",  # so that no quick run is ever taken for a long one
        )  # fmt: skip

    def results(self, kept: Runs, runs: list[Options], common: dict[str, Any]) -> Iterator[tuple[Options, Any]]:
        """Yield each run with its Result, or the error."""
        for options in runs:
            yield options, attempt(partial(_make, replace(options, **common), kept))


def _make(options: Options, kept: Runs) -> Result:
    """Make one run. That a learning rate of the grid diverges is a result. Raises RunFailed, UsageError, OSError."""
    name = str(options.run_name)
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        try:
            run(replace(options, results_dir=folder), quiet=True)
        except RunFailed as error:
            if not name.startswith(TUNING) or not diverged(error):
                raise
            return pd.DataFrame(), {"options": options.recorded(), "git_commit": git_commit(), DIVERGED: str(error)}
        said = results.load_metadata(f"{path}.json")
        if name.startswith(TIMELINE):
            with write_atomically(kept.events_of(name)) as temporary:
                shutil.copy(f"{path}{EVENTS_SUFFIX}", temporary)
        if options.events and options.strategy.traits.asynchronous and not name.startswith(TUNING):
            said[STALENESS] = histogram(results.load_events(path)).astype("int64").to_numpy().tolist()
        return results.load_table(f"{path}.csv"), said


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
