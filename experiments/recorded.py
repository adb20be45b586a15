"""What the records of a run say, in today's names, and whether a run that was made is the one that is declared.

Nothing else in `experiments/` knows how options were once called.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.runs import strategy_class
from records.files import AnyPath, load_metadata, load_table
from records.tables import finished_epochs
from training import Options

_FORMER = ("backup_workers", "reads", "n_pull")
_ELSEWHERE = (
    *("data_dir", "download", "timeout", "results_dir", "run_name", "save"),
    *("checkpoint_dir", "checkpoint_keep"),
)
"""Options that do not make a run what it is: where the files are, and how long a wait may take."""


def load(path: AnyPath) -> dict[str, Any]:
    """Return the metadata in the .json of a run, its options as they are called today.

    Raises OSError if the file cannot be read, ValueError or KeyError if it is not that of a run.
    """
    metadata = load_metadata(path)
    return metadata | {"options": in_todays_names(metadata["options"])}


def in_todays_names(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded options as they are called today: two were once part of the servers' options."""
    options = {name: value for name, value in recorded.items() if name not in _FORMER}
    if recorded.get("backup_workers"):
        options |= {"strategy": "backup_workers", "n_backup": recorded["backup_workers"]}
    if recorded.get("reads") == "inconsistent":
        options["strategy"] = "inconsistent_reads"
    if "n_pull" in recorded:
        options["n_fetch"] = recorded["n_pull"]
    return options


def measured(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the recorded options that make a run what it is, in today's names.

    They are the options that its strategy and every run have today; one that the records do not have counts as its
    default. Raises KeyError, UsageError if the strategy is not recorded, or unknown.
    """
    options = in_todays_names(recorded)
    known = Options(strategy=strategy_class(options["strategy"])()).recorded()
    values = {name: options.get(name, default) for name, default in known.items() if name not in _ELSEWHERE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def same_run(options: Options, recorded: Mapping[str, Any]) -> bool:
    """Return whether a run with the options in `recorded` measured what `options` ask for."""
    try:
        return measured(recorded) == measured(options.recorded())
    except (KeyError, ValueError):
        return False


def is_there(options: Options) -> bool:
    """Return whether this very run is there, whole and good: its files, what it measured, and that it did not fail."""
    path = Path(options.results_dir) / f"{options.run_name}"
    try:
        metadata, table = load_metadata(f"{path}.json"), load_table(f"{path}.csv")
        recorded = metadata["options"]
        good = metadata["replicas_identical"] or not _replicas_agreed(options, recorded)
        return good and same_run(options, recorded) and finished_epochs(table) == options.epochs
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _replicas_agreed(options: Options, recorded: Mapping[str, Any]) -> bool:
    """Return whether the code that made the record had to end with identical replicas.

    As long as options had their former names, asynchronous servers began the next epoch while others ended theirs.
    """
    former = any(name in recorded for name in _FORMER)
    return options.strategy.replicas_agree and not (former and options.strategy.asynchronous)
