"""Grids of runs, each made once: experiments, and the tables of benchmarks.

Rows are kept as soon as a run has ended, with the machine, the versions, the commit and the options beside them. An
interrupted command continues where it was: a run that is kept is not made again, unless its files are deleted.
"""

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from gradwire.command import refuse_former
from gradwire.core.records.atomic import AnyPath, check_writable_by, write_together
from gradwire.core.records.errors import RunFailed, UsageError, as_usage_error
from gradwire.core.records.machine import git_commit, machine

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "amd-epyc-2-cores"  # the results in the repository
FINISHED = "finished runs are kept, and the same command continues from there"
Row = Mapping[str, Any]
_OF_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def hardware(device: str) -> str:
    """Return the name of the folder for results of this machine's `device`: cpu or cuda."""
    here = machine()
    gpus, cores = here["gpus"], here["cores"]
    name = f"{len(gpus)} {gpus[0]}" if device == "cuda" else f"{here['cpu']} {cores} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def made_by() -> dict[str, Any]:
    """Return the machine with its versions, and the commit, as they are kept beside all rows."""
    return {"machine": machine(), "git_commit": git_commit()}


def diverged(error: RunFailed) -> bool:
    """Return whether a run failed because its loss became nan."""
    return "take a smaller --lr" in str(error)


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


@dataclass
class Count:
    """How many runs were made and were there already, and the names of those that failed."""

    made: int = 0
    there: int = 0
    failed: list[str] = field(default_factory=list)

    def collect(self, jobs: Iterable[tuple[str, Callable[[Any], object], Any]], n: int) -> None:
        """Call each job's function with its result; report what failed, and continue."""
        bar = tqdm(jobs, total=n, unit="run", disable=not n)
        for name, keep, result in bar:
            bar.set_description(name)
            kept = result if isinstance(result, Exception) else attempt(partial(keep, result))
            if isinstance(kept, Exception):
                self.failed.append(name)
                bar.write(f"failed: {name}: {' '.join(str(kept).split())}", file=sys.stderr)
            else:
                self.made += 1

    def check(self) -> None:
        """Raise RunFailed if a run failed."""
        if self.failed:
            named = ", ".join(self.failed[:3]) + (", ..." if len(self.failed) > 3 else "")
            raise RunFailed(f"{len(self.failed)} of {self.made + len(self.failed)} runs failed: {named}")


class Store:
    """The kept runs in a folder: NAME.csv has a `table` of all runs, NAME.json the `facts` that they share.

    Every change is written at once, both files or none. Raises UsageError if a file is damaged.
    """

    columns: Mapping[str, Any] = {}
    """The columns that the table has in any case, and their types."""
    may_lack_facts = False
    """Whether a table without a JSON beside it, as they were once kept, can be read."""
    cure = "name another --results_dir, or delete the results of all experiments and measure them again"

    def __init__(self, folder: AnyPath, name: str) -> None:
        self.folder = Path(folder)
        self.paths = [self.folder / f"{name}{suffix}" for suffix in (".csv", ".json")]
        self.table, self.facts = pd.DataFrame(columns=list(self.columns)), dict[str, Any]()
        if any(path.exists() for path in self.paths):
            files = " and ".join(path.name for path in self.paths)
            cure = f"; take {files} from the repository again, or delete them and measure again"
            with as_usage_error(f"{folder}: the results of {name} are damaged", cure, _OF_DAMAGE):
                if self.paths[1].exists() or not self.may_lack_facts:
                    self.facts = json.loads(self.paths[1].read_text(encoding="utf-8"))
                # Otherwise a strategy called "none" would be read as a missing value.
                self.load(pd.read_csv(self.paths[0], dtype=self.columns, keep_default_na=False, na_values=[""]))

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

    def refuse_another_machine(self) -> None:
        """Raise UsageError if the kept runs were measured on another machine, or with other versions."""
        here, there = json.loads(json.dumps(machine())), self.facts.get("machine", {})
        if changed := [name for name, value in here.items() if there.get(name) != value]:
            raise UsageError(f"{self.paths[1]}: was measured with another {', '.join(changed)}; {self.cure}")


class Table(Store):
    """The rows of a benchmark. A case is what some of their columns have; it may have several rows."""

    may_lack_facts = True
    cure = "delete it and the table beside it, and make all runs again"

    def __init__(self, path: Path, keys: Sequence[str], options: Row) -> None:
        self.keys = list(keys)
        super().__init__(path.parent, path.stem)
        wanted = json.loads(json.dumps(options))
        self.facts = self.facts or (made_by() | {"options": wanted} if self.table.empty else {})
        if self.facts.get("options", wanted) != wanted:
            raise UsageError(f"{path}: was made with other options; delete it and {self.paths[1].name}, make it again")

    def load(self, table: pd.DataFrame) -> None:
        """Take over what was read. Raises KeyError if it is of other cases."""
        self.table = table[[*self.keys, *table.columns.difference(self.keys, sort=False)]]

    @property
    def cases(self) -> set[tuple[str, ...]]:
        """The cases that are kept."""
        return {_values(row) for row in self.table.reindex(columns=self.keys).itertuples(index=False, name=None)}


def _values(case: Iterable[Any]) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else f"{value:.7g}" for value in case)


@dataclass(frozen=True)
class Grid:
    """A table of runs: its file, its cases, the function that makes the rows of each, and the one that shows them all.

    `options`: what else the rows depend on, which is kept beside them.
    """

    out: Path
    cases: Sequence[Row]
    make: Callable[..., Row | Iterable[Row]]
    show: Callable[[pd.DataFrame], object]
    options: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.make.__module__ == "__main__":  # a module of benchmarks, run as a script: it would make nothing
            name = Path(sys.argv[0]).stem
            refuse_former(f"{name}.py", f"python -m benchmarks {name}")

    def complete(self) -> None:
        """Make the cases that the table lacks, then show all. Raises UsageError, RunFailed."""
        kept, count = Table(self.out, list(self.cases[0]), self.options), Count()
        there = kept.cases
        lacking = [case for case in self.cases if _values(case.values()) not in there]
        if lacking:
            kept.refuse_another_machine()
            check_writable_by("results_dir", kept.folder)

        def rows(case: Row) -> pd.DataFrame:
            found = self.make(**case)
            return pd.DataFrame([found] if isinstance(found, Mapping) else list(found))

        jobs = ((" ".join(_values(case.values())), kept.append, attempt(partial(rows, case))) for case in lacking)
        count.collect(jobs, len(lacking))
        count.check()
        self.show(kept.table)
        print(f"table in {kept.paths[0]}: {count.made} runs made, {len(self.cases) - len(lacking)} were there")


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
    def small(self, run: Any) -> Any:
        """Return what becomes of a run if the experiment is quick; None: it is left out."""

    def tuned(self, kept: Any) -> Any:
        """Return the learning rates that the runs of the grid found; None without a grid."""
        return None

    def like(self, run: Any) -> Any:
        """Return which of these rates a run has."""
        return None

    def grid(self) -> list[Any]:
        """Return the runs that find the learning rates, of this size."""
        return self._sized(self.tuning)

    def finals(self, rates: Any) -> list[Any]:
        """Return the runs that are shown, of this size, with these learning rates."""
        return [replace(run, lr=rates[self.like(run)]) if rates else run for run in self._sized(self.shown)]

    def _sized(self, runs: Sequence[Any]) -> list[Any]:
        return [small for run in runs if (small := self.small(run) if self.quick else run) is not None]

    @abstractmethod
    def open(self, folder: Path) -> Any:
        """Return the Store in a folder; it says whether it `has` a run, and can `add` one. Raises UsageError."""

    @abstractmethod
    def results(self, kept: Any, runs: list[Any], common: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each run with its result, or the error. `common`: device and data_dir."""

    def missing(self, folder: Path) -> list[str]:
        """Return the names of the runs and files that are not there; of the grid first. Raises UsageError."""
        kept = self.open(folder)
        absent = [run for run in self.grid() if not kept.has(run)]
        if not absent:
            absent = [final for final in self.finals(self.tuned(kept)) if not kept.has(final)]
        return [*(str(run.run_name) for run in absent), *(name for name in self.files if not (folder / name).exists())]
