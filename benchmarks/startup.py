"""A first run takes at most 2.2 times as long as `import torch`; 8 ranks are ready at most 1.5 times as late as 1.

python benchmarks/startup.py

Seconds of fresh Python processes, which take turns. Row 1: one that only imports torch. Row 2: the README's first
command, 10 epochs of the digits mlp with one server and three workers, from its start to its end; its ratio is to row
1. Then: until all ranks of ring_all_reduce hold data, model and parameters; the ratio is to the first number of ranks.
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
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from transports.timing import now

ROOT = Path(__file__).resolve().parent.parent
READY = "ready at "
IMPORT = [sys.executable, "-c", "import torch"]
FIRST_RUN = [sys.executable, "train.py", "--strategy", "param_server", "--n_gpus", "4"]
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


def seconds_of(*command: str) -> float:
    """Run a command to its end; return the seconds it took. Raises RunFailed."""
    t0 = now()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    return now() - t0


def seconds_to_first_result() -> float:
    """Run the README's first command; return the seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of(*FIRST_RUN, "--results_dir", folder)


def measure(settings: StartupSettings) -> Iterator[Row]:
    """Yield a row for the import of torch, one for a first run, and one per number of ranks."""
    sides = {"import torch": lambda: seconds_of(*IMPORT), "first run, to its end": seconds_to_first_result}
    whole: dict[str, list[float]] = {name: [] for name in sides}
    seconds_to_first_result()  # the files are in memory now, for all alike
    for _ in range(settings.repeats):
        for name, side in sides.items():
            whole[name].append(side())
        sides = dict(reversed(sides.items()))
    imports = np.array(whole["import torch"])
    for name, taken in whole.items():
        yield {"what": name, **figure("seconds", taken), **ratio(np.array(taken), imports)}
    order = list(settings.ranks)
    seconds: dict[int, list[float]] = {n: [] for n in order}
    for _ in range(settings.repeats):
        for n in order:
            seconds[n].append(seconds_to_first_step(n))
        order.append(order.pop(0))
    first = np.array(seconds[settings.ranks[0]])
    for n in settings.ranks:
        yield {"what": f"{n} ranks ready", **figure("seconds", seconds[n]), **ratio(np.array(seconds[n]), first)}


if __name__ == "__main__":
    sys.exit(main(__doc__, StartupSettings, measure))
