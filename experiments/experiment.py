"""What an experiment is: the runs that find learning rates, the runs that are shown with them, and how each is made.

`Simulated` experiments (simulated.py) keep a row for each run and epoch; those that measure this machine, `Measured`
(store.py), keep the table of every rank.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from records.errors import RunFailed, UsageError
from records.tables import SERVER
from strategies import STRATEGIES, Strategy


def make(name: str, **options: Any) -> Strategy:
    """Return a strategy by its name."""
    return replace(STRATEGIES[name](), **options)


def servers(strategy: Strategy) -> int:
    """Return how many ranks a strategy adds to its workers."""
    return strategy.roles(64).count(SERVER)


@dataclass(frozen=True)
class Failed:
    """Why a run failed."""

    why: str


def attempt(make: Callable[[], Any]) -> Any:
    """Return what `make` returns, or Failed; an interrupt in a destructor, which Python only prints, ends it too."""
    with _interrupts_of_destructors():
        try:
            return make()
        except (RunFailed, UsageError, OSError) as error:
            return Failed(" ".join(str(error).split()))


class Experiment(ABC):
    """Runs, where their results are kept, and further files. A run is an Options, or a Case."""

    files: Mapping[str, Callable[[Path], object]] = {}  # by name: what makes each

    def __init__(self, name: str) -> None:
        self.name = name

    def grid(self, quick: bool) -> list[Any]:
        """Return the runs that find the learning rates."""
        return []

    def tuned(self, kept: Any, quick: bool) -> Any:
        """Return the learning rates that the runs of the grid found; None without a grid."""
        return None

    @abstractmethod
    def finals(self, rates: Any, quick: bool) -> list[Any]:
        """Return the runs that are shown, with these learning rates; seed by seed."""

    @abstractmethod
    def open(self, folder: Path, quick: bool) -> Any:
        """Return what is kept; it says whether it `has` a run, and can `add` one. Raises UsageError if damaged."""

    @abstractmethod
    def results(self, kept: Any, runs: list[Any], common: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each run with its result, or Failed. `common`: device, data_dir and results_dir."""

    def label(self, one: Any) -> str:
        """Return the name of a run."""
        return str(one.run_name)

    def missing(self, folder: Path, quick: bool = False) -> list[str]:
        """Return the names of the runs and files that are not there; of the grid first. Raises UsageError."""
        kept = self.open(folder, quick)
        absent = [one for one in self.grid(quick) if not kept.has(one)]
        if not absent:
            absent = [one for one in self.finals(self.tuned(kept, quick), quick) if not kept.has(one)]
        return [*map(self.label, absent), *(name for name in self.files if not (folder / name).exists())]


def diverged(error: RunFailed) -> bool:
    """Return whether a run failed because its loss became nan."""
    return "take a smaller --lr" in str(error)


@contextmanager
def _interrupts_of_destructors() -> Iterator[None]:
    """Raise after the block an interrupt that came while a destructor ran: there Python only prints exceptions."""
    came: list[KeyboardInterrupt] = []

    def note(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            came.append(KeyboardInterrupt(*unraisable.exc_value.args))
        else:
            former(unraisable)

    former, sys.unraisablehook = sys.unraisablehook, note
    try:
        yield
    finally:
        sys.unraisablehook = former
    if came:
        raise came[0]
