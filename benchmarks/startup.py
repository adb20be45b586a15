"""A first run takes at most 2.2 times as long as `import torch`; 8 ranks are ready at most 1.5 times as late as 1.

python -m benchmarks startup

Seconds of fresh Python processes, which take turns. Row 1: one that only imports torch. Row 2: the README's first
command, 10 epochs of the digits mlp with one server and three workers, from its start to its end; its ratio is to row
1. Then: until all ranks of ring_all_reduce hold data, model and parameters; the ratio is to the first number of ranks.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Row, figures, in_turns
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.timing import now
from strategies.all_reduce.ring_all_reduce import RingAllReduce

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
class Settings(common.Settings):
    """Options of the startup benchmark."""

    repeats: int = 5
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of ranks; the first is what the others are compared to."""


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


def measure(settings: Settings) -> Iterator[Row]:
    """Yield a row for the import of torch, one for a first run, and one per number of ranks."""
    seconds_to_first_result()  # the files are in memory now, for all alike
    whole = {"import torch": lambda: seconds_of(*IMPORT), "first run, to its end": seconds_to_first_result}
    ready = {f"{n} ranks ready": partial(seconds_to_first_step, n) for n in settings.ranks}
    for sides in (whole, ready):
        seconds = in_turns(sides, settings.repeats)
        first = next(iter(seconds.values()))
        for what, taken in seconds.items():
            yield {"what": what, **figures(seconds=taken, ratio=taken / first)}
