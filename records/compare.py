"""Print finished runs side by side: `python -m records.compare RESULTS_DIR/*.json`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import TypeVar

from records.files import TRACE_SUFFIX, load_metadata, load_table
from records.tables import aligned, finished_epochs, number, show, staleness, totals, workers

HEADER = (
    *("run", "strategy", "n_gpus", "epochs", "test accuracy", "seconds", "samples/s", "MB sent"),
    *("waiting %", "staleness", "identical"),
)

Loaded = TypeVar("Loaded")


class BadRun(Exception):
    """A file that cannot be compared; the message names it and says why, in one line."""


def compare(paths: Sequence[str]) -> str:
    """Return the runs behind `paths` as an aligned table, one run a row, in the order given and each run once.

    A path is the .csv or the .json of a run, or a pattern of such. waiting: the share of the workers' time; staleness:
    of the gradients, mean and maximum in versions; identical: the replicas at the end. Raises BadRun.
    """
    found = [match for path in paths for match in _expand(path) if not match.name.endswith(TRACE_SUFFIX)]
    if not found:
        raise BadRun(f"{paths[0]}: the trace of a run; give its .json")
    runs = dict.fromkeys(_run(path) for path in found)
    return aligned([HEADER, *(_row(run) for run in runs)], left=2)


def _expand(path: str) -> list[Path]:
    if os.path.exists(path):
        return [Path(path)]
    matches = [Path(match) for match in sorted(glob(path))]
    if not matches:
        raise BadRun(f"{path}: no such file")
    return matches


def _run(path: Path) -> Path:
    if path.suffix not in (".csv", ".json"):
        raise BadRun(f"{path}: neither the .csv nor the .json of a run")
    return path.with_suffix("")


def _row(run: Path) -> list[str]:
    # Appended, not with_suffix: the name of a run may hold dots.
    table_path, metadata_path = f"{run}.csv", f"{run}.json"
    table = _load(load_table, table_path)
    if not finished_epochs(table):
        raise BadRun(f"{table_path}: the run finished no epoch")
    has_metadata = os.path.exists(metadata_path)
    identical = _load(load_metadata, metadata_path)["replicas_identical"] if has_metadata else None
    numbers, trained = totals(table), workers(table)
    stale, stalest = staleness(table)
    waiting = trained["wait_s"].sum(min_count=1) / trained["epoch_s"].sum()
    return [
        run.name,
        str(table["strategy"].iloc[0]),
        str(table["n_gpus"].iloc[0]),
        str(finished_epochs(table)),
        number(numbers["test_accuracy"], 4),
        number(numbers["seconds"], 2),
        number(numbers["samples_per_s"]),
        number(numbers["bytes_sent"], scale=1e-6),
        number(waiting, scale=100),
        f"{number(stale)}, {number(stalest, 0)}" if stale >= 0 else "-",
        "-" if identical is None else "yes" if identical else "no",
    ]


def _load(load: Callable[[str], Loaded], path: str) -> Loaded:
    try:
        return load(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadRun(f"{path}: {reason.splitlines()[0]}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; return the exit status: 0, or 2 with one line on stderr if a file is not usable."""
    parser = argparse.ArgumentParser(prog="python -m records.compare", description="Print finished runs side by side.")
    parser.add_argument(
        "paths", nargs="+", metavar="RUN", help="the .json or .csv of a run (each finds the other), or a quoted pattern"
    )
    try:
        show(compare(parser.parse_args(arguments).paths))
    except BadRun as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
