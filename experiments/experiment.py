"""What an experiment is: the runs that find learning rates, those that are shown with them, and what is kept of both.

`Simulated` experiments (simulated.py) keep a row for each run and epoch; those that measure this machine, `Measured`
(real.py), keep the table of every rank.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from gradwire.core.records.atomic import AnyPath, write_together
from gradwire.core.records.errors import RunFailed, UsageError, one_line


def attempt(make: Callable[[], Any]) -> Any:
    """Return what `make` returns, or the error that it raises.

    An interrupt in a destructor, where Python only prints exceptions, is raised after `make`.
    """
    came: list[BaseException] = []

    def note(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            came.append(unraisable.exc_value)
        else:
            former(unraisable)

    former, sys.unraisablehook = sys.unraisablehook, note
    try:
        return make()
    except (RunFailed, UsageError, OSError) as error:
        return error
    finally:
        sys.unraisablehook = former
        if came:
            raise came[0]


class Store:
    """What is kept of an experiment in a folder: EXPERIMENT.csv has a `table` of its runs, EXPERIMENT.json `facts`.

    Every change is written at once, both files or none. Raises UsageError if a file is damaged.
    """

    columns: Mapping[str, Any] = {}  # those that the table has in any case, and their types

    def __init__(self, folder: AnyPath, experiment: str) -> None:
        self.folder = Path(folder)
        self.paths = [self.folder / f"{experiment}{suffix}" for suffix in (".csv", ".json")]
        self.table, self.facts = pd.DataFrame(columns=list(self.columns)), dict[str, Any]()
        if any(path.exists() for path in self.paths):
            try:
                self.facts = json.loads(self.paths[1].read_text(encoding="utf-8"))
                # Otherwise a strategy called "none" would be read as a missing value.
                table = pd.read_csv(self.paths[0], dtype=self.columns, keep_default_na=False, na_values=[""])
                self.load(table)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"{folder}: the results of {experiment} are damaged ({one_line(error)}); take "
                    f"{' and '.join(path.name for path in self.paths)} from the repository again, or delete them and "
                    "measure again"
                ) from error

    def load(self, table: pd.DataFrame) -> None:
        """Take over what was read: `table`, beside the facts."""
        self.table = table

    def written(self) -> dict[str, Any]:
        """Return the facts as they are written."""
        return self.facts

    def append(self, rows: pd.DataFrame) -> None:
        """Add the rows of a run, and write both files. Raises OSError."""
        self.table = pd.concat([self.table, rows], ignore_index=True) if len(self.table) else rows
        columns = dict.fromkeys([*self.columns, *self.table])
        with write_together(self.paths) as (csv, facts):
            self.table.reindex(columns=list(columns)).to_csv(csv, index=False, float_format="%.7g")
            facts.write_text(json.dumps(self.written(), indent=1) + "\n", encoding="utf-8")


class Experiment(ABC):
    """Runs, where their results are kept, and further files. A run is an Options, or a Case.

    A subclass declares the runs of the full experiment. `quick`: fewer and smaller ones, as `small` makes them.
    """

    tuning: Sequence[Any] = ()
    """The runs that find the learning rates."""
    shown: Sequence[Any]
    """The runs that are shown, their learning rates still to be set; seed by seed."""
    files: Mapping[str, Callable[[Path], object]] = {}
    """Further files by their names: what makes each."""

    def __init__(self, name: str, quick: bool = False) -> None:
        self.name, self.quick = name, quick

    @abstractmethod
    def small(self, one: Any) -> Any:
        """Return what becomes of a run if the experiment is quick; None: it is left out."""

    def tuned(self, kept: Any) -> Any:
        """Return the learning rates that the runs of the grid found; None without a grid."""
        return None

    def like(self, one: Any) -> Any:
        """Return which of these rates a run has."""
        return None

    def grid(self) -> list[Any]:
        """Return the runs that find the learning rates, of this size."""
        return self._sized(self.tuning)

    def finals(self, rates: Any) -> list[Any]:
        """Return the runs that are shown, of this size, with these learning rates."""
        return [replace(one, lr=rates[self.like(one)]) if rates else one for one in self._sized(self.shown)]

    def _sized(self, runs: Sequence[Any]) -> list[Any]:
        return [small for one in runs if (small := self.small(one) if self.quick else one) is not None]

    @abstractmethod
    def open(self, folder: Path) -> Any:
        """Return the Store in a folder; it says whether it `has` a run, and can `add` one. Raises UsageError."""

    @abstractmethod
    def results(self, kept: Any, runs: list[Any], common: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each run with its result, or the error. `common`: device, data_dir and results_dir."""

    def missing(self, folder: Path) -> list[str]:
        """Return the names of the runs and files that are not there; of the grid first. Raises UsageError."""
        kept = self.open(folder)
        absent = [one for one in self.grid() if not kept.has(one)]
        if not absent:
            absent = [one for one in self.finals(self.tuned(kept)) if not kept.has(one)]
        return [*(str(one.run_name) for one in absent), *(name for name in self.files if not (folder / name).exists())]


def diverged(error: RunFailed) -> bool:
    """Return whether a run failed because its loss became nan."""
    return "take a smaller --lr" in str(error)
