"""Wings: the options, checks, watchers and records that a folder beside the core adds to every run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd
from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.training.orders import RankResult
from gradwire.core.training.watchers import Watcher
from gradwire.core.workloads.data import Data


@dataclass
class Record:
    """The record of a run that is written; wings add to it."""

    table: pd.DataFrame  # of epochs and ranks
    results: list[RankResult]
    facts: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)  # beside the usual ones, by their paths

    def found(self, watcher: str) -> dict[int, Any]:
        """Return the results of the watcher of this name, by rank."""
        return {result.rank: result.found[watcher] for result in self.results if watcher in result.found}


class Wing:
    """One such folder; each method does nothing unless a subclass overrides it.

    `options` are those of the run; a wing reads its own panel and the core's.
    """

    title: ClassVar[str] = ""
    """Of its panel in `--help all`."""
    panel: ClassVar[type[Any] | None] = None
    """A dataclass of its options, which the options of a run inherit from."""

    def recorded(self, arguments: Sequence[str], builtin: Any) -> Any:
        """Return the options that a command line names by the record of a run, such as --resume; None: it does not.

        `builtin`: the baseline that the command runs. Raises UsageError.
        """
        return None

    def resolve(self, options: Any, launcher: Launcher) -> Any:
        """Return the options with its own checked and filled in, before there are data. Raises UsageError."""
        return options

    def check(self, options: Any, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check its options, resolved, against the data and the model. Raises UsageError."""

    def around(self, options: Any, launcher: Launcher, quiet: bool) -> AbstractContextManager[Any]:
        """Return the block in which the ranks run and the records are written. Raises UsageError, RunFailed."""
        return nullcontext()

    def watchers(self, options: Any) -> list[Watcher]:
        """Return the watchers of each rank."""
        return []

    def record(self, options: Any, record: Record) -> None:
        """Add to the records what its watchers have found."""

    def summary(self, options: Any, facts: Mapping[str, Any]) -> list[str]:
        """Return lines of the summary, from the record."""
        return []

    def conclude(self, options: Any, facts: Mapping[str, Any], quiet: bool) -> None:
        """Judge the run by its records, when they are written. Raises RunFailed."""

    def fail(self, code: int) -> None:
        """The command ends with this exit code, which is not 0."""
