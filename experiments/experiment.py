"""What an experiment is: the runs that find learning rates, the runs that are shown with them, and how each is made.

`Simulated` experiments (simulated.py) keep a row for each run and epoch; those that measure this machine, `Measured`
(real.py), keep the table of every rank.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from records.errors import RunFailed, UsageError
from strategies import STRATEGIES, Strategy


def make(name: str, **options: Any) -> Strategy:
    """Return a strategy by its name."""
    return replace(STRATEGIES[name](), **options)


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


class Experiment(ABC):
    """Runs, where their results are kept, and further files. A run is an Options, or a Case.

    A subclass declares the runs of the full experiment. `quick`: fewer and smaller ones, as `small` makes them.
    """

    files: Mapping[str, Callable[[Path], object]] = {}  # by name: what makes each

    def __init__(self, name: str, quick: bool = False) -> None:
        self.name, self.quick = name, quick

    def tuning(self) -> list[Any]:
        """Return the runs that find the learning rates."""
        return []

    @abstractmethod
    def shown(self) -> list[Any]:
        """Return the runs that are shown, their learning rates still to be set; seed by seed."""

    @abstractmethod
    def small(self, one: Any) -> Any:
        """Return what becomes of a run if the experiment is quick; None: it is left out."""

    def with_rate(self, one: Any, rates: Any) -> Any:
        """Return the run with its learning rate."""
        return one

    def tuned(self, kept: Any) -> Any:
        """Return the learning rates that the runs of the grid found; None without a grid."""
        return None

    def grid(self) -> list[Any]:
        """Return the runs that find the learning rates, of this size."""
        return self._sized(self.tuning())

    def finals(self, rates: Any) -> list[Any]:
        """Return the runs that are shown, of this size, with these learning rates."""
        return [self.with_rate(one, rates) for one in self._sized(self.shown())]

    def _sized(self, runs: list[Any]) -> list[Any]:
        return [small for one in runs if (small := self.small(one)) is not None] if self.quick else runs

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
