"""Replay: an asynchronous run once more, its messages taken in the order in which they came then.

    python train.py --replay RESULTS_DIR/RUN_NAME

The order is all that two such runs differ in, and it is always recorded: as "arrivals", the ranks one after the other,
in RUN_NAME.json. So the replay ends with the same parameters, bit for bit, however fast each worker is this time.
Where other ranks than the first looked for messages, theirs follow after a semicolon each; "-": there was none.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.core.records.errors import RunFailed, as_usage_error
from gradwire.core.records.machine import machine
from gradwire.core.training.rank import Rank
from gradwire.core.training.watchers import Watcher
from gradwire.core.transports.inbox import NOBODY
from gradwire.results import load_metadata

_OF_OTHERS = (OSError, ValueError, KeyError, TypeError, AttributeError)  # raised by a file that is no record


@dataclass
class Recorded:
    """The facts that a replay needs of the run that it repeats."""

    options: dict[str, Any]
    arrivals: list[list[int]]  # by rank; of the last ones there may be none
    deaths: list[dict[str, Any]]
    parameter_hash: str
    machine: dict[str, Any]
    repeat: str  # the option that repeats the choice at the beginning


def load(path: str) -> Recorded:
    """Return the record of the run RESULTS_DIR/RUN_NAME. Raises UsageError."""
    name = f"{path.removesuffix('.json')}.json"
    with as_usage_error(f"--replay {path}: {name} is not the record of a run", "", _OF_OTHERS):
        metadata = load_metadata(Path(name))
        of_ranks = metadata["arrivals"].split(";") if metadata["arrivals"] != "" else []
        return Recorded(
            dict(metadata["options"]),
            [[NOBODY if rank == "-" else int(rank) for rank in of_rank.split()] for of_rank in of_ranks],
            metadata["deaths"],
            metadata["parameter_hash"]["0"],
            metadata["machine"],
            metadata.get("choice", {}).get("repeat", ""),
        )


class Replay(Watcher):
    """Has each rank take its messages in the order of the run at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def before_start(self, rank: Rank) -> None:
        """Give the order to the inbox."""
        of_ranks = load(self._path).arrivals
        if any(of_rank := of_ranks[rank.transport.rank : rank.transport.rank + 1]):
            rank.transport.inbox.replay = iter(of_rank[0])


def compare(path: str, parameter_hash: str, quiet: bool) -> None:
    """Check that the replay ended with the same parameters, and print so. Raises RunFailed."""
    run = load(path)
    if parameter_hash == run.parameter_hash:
        if not quiet:
            print(f"replay         bit for bit the parameters of {path}")
        return
    here = machine()
    other = [f"{key} {run.machine.get(key)} then, {here[key]} here" for key in ("torch", "cpu", "cores")
             if run.machine.get(key) != here[key]]  # fmt: skip
    why = "; ".join(other) or "the code or the data are not the same"
    raise RunFailed(f"the replay has come to other parameters than {path}: {why}")
