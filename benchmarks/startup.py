"""8 ranks are ready for their first step at most 1.5 times as late as 1 rank.

python benchmarks/startup.py

Seconds from the start of a fresh Python process that trains the digits mlp with ring_all_reduce, until all of its ranks
hold data, model and parameters; ratio is to the first number of ranks.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Settings, figure, main, ratio, require
from records.errors import RunFailed
from strategies.ring_all_reduce import RingAllReduce
from transports.timing import now

ROOT = Path(__file__).resolve().parent.parent
READY = "ready at "
TRAIN = [sys.executable, "train.py", "--strategy", "benchmarks.startup:Told", "--device", "cpu"]


@dataclass(kw_only=True)
class Told(RingAllReduce):
    """RingAllReduce whose rank 0 prints when all ranks are ready."""

    def start(self, *run: Any, **more: Any) -> None:
        """See Strategy; then wait for all, and print the time."""
        super().start(*run, **more)
        self.transport.barrier()
        if self.transport.rank == 0:
            print(f"{READY}{self.transport.now()}", flush=True)


@dataclass(frozen=True)
class StartupSettings(Settings):
    """Options of the startup benchmark."""

    repeats: int = 5
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of ranks; the first is what the others are compared to."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(len(self.ranks) > 0 and min(self.ranks) >= 1, "--ranks: give numbers of at least 1")
        require(len(set(self.ranks)) == len(self.ranks), "--ranks: give each number once")


def seconds_to_first_step(n_ranks: int) -> float:
    """Start a run; return the seconds until it was ready, and end it. Raises RunFailed."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        command = [*TRAIN, "--n_gpus", str(n_ranks), "--results_dir", folder]
        t0 = now()  # a clock that all processes share
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if line.startswith(READY)), None)
            process.terminate()
        if ready is None:
            errors.seek(0)
            raise RunFailed(f"{n_ranks} ranks never were ready:\n{errors.read()}")
    return float(ready.removeprefix(READY)) - t0


def measure(settings: StartupSettings) -> Iterator[Row]:
    """Yield one row per number of ranks."""
    order = list(settings.ranks)
    seconds: dict[int, list[float]] = {n: [] for n in order}
    seconds_to_first_step(order[0])  # the files are in memory now, for all alike
    for _ in range(settings.repeats):
        for n in order:
            seconds[n].append(seconds_to_first_step(n))
        order.append(order.pop(0))
    first = np.array(seconds[settings.ranks[0]])
    for n in settings.ranks:
        yield {"n_ranks": n, **figure("seconds", seconds[n]), **ratio(np.array(seconds[n]), first)}


if __name__ == "__main__":
    sys.exit(main(__doc__, StartupSettings, measure))
