"""A DistributedDataParallel script on the virtual cluster takes the time that it takes on the kernel's network.

python -m benchmarks script --out script.json     # as root: it makes network namespaces

Measured: `ddp_steps.py` by one process in each namespace, on links that `tc` shapes (see `namespaces.py`), with gloo.
simulated_ms: `simulate.py --script` with the latency 100 us and --compute as the script takes with one rank, measured
here. error is simulated_ms / measured_ms - 1, in percent. Ranks in namespaces share this machine's cores, those in
virtual time do not: where the link does not dominate, the error shows it.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks import common, ddp_steps
from benchmarks.common import Row, figures
from benchmarks.namespaces import DEVICE, namespaces
from gradwire.networks.units import PAYLOAD
from gradwire.torch_scripts.collectives import plans
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.virtual import run_in_virtual_time
from gradwire.torch_scripts.virtual_rank import ScriptRecorder, Speed
from gradwire.virtual_time.network import OneSwitch

LIMIT_S = 300.0
LATENCY = 100e-6
# gloo sometimes aborts a process that ends after rank 0, so end it before its threads do.
_RUN = "import os, runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__'); "
_RUN += "sys.stdout.flush(); os._exit(0)"


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the benchmark of a script."""

    repeats: int = 8
    """How many steps are timed, after two others."""
    ranks: tuple[int, ...] = (2, 3, 4)
    """Numbers of ranks."""
    mbit: tuple[int, ...] = (100, 1000)
    """Bandwidths of the links, in Mbit/s."""
    bucket_mb: tuple[float, ...] = (25, 0.5)
    """Megabytes of gradients in a bucket of DistributedDataParallel."""

    least = {"bucket_mb": 0.1}


def command(rank: int, n: int, address: str, *arguments: object) -> list[str]:
    """Return what starts a rank of the script."""
    environment = [f"RANK={rank}", f"MASTER_ADDR={address}", f"GLOO_SOCKET_IFNAME={DEVICE}", "OMP_NUM_THREADS=1"]
    return ["env", *environment, sys.executable, "-c", _RUN, ddp_steps.__file__, str(n), *map(str, arguments)]


def simulated(n: int, mbit: int, steps: int, bucket_mb: float, compute: float) -> float:
    """Return the seconds of a step in virtual time."""
    script = Script(ddp_steps.__file__, [str(n), str(steps), str(bucket_mb)])
    network = OneSwitch(n, PAYLOAD * mbit * 1e6 / 8, LATENCY)
    recorders = [ScriptRecorder(rank, script.folder) for rank in range(n)]
    with redirect_stdout(io.StringIO()):  # it prints what it takes here
        ends = run_in_virtual_time(script, network, recorders, Speed(compute), plans("ring")).ranks[0].passes
    return (ends[-1] - ends[1]) / (len(ends) - 2)


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row for each number of ranks, bandwidth and size of a bucket."""
    steps = settings.repeats + 2
    alone = subprocess.run([sys.executable, ddp_steps.__file__, "1", "50"], capture_output=True, text=True, check=True)
    compute = float(np.median(np.array(alone.stdout.split(), float)))
    for n, mbit in product(settings.ranks, settings.mbit):
        with namespaces(n) as made:
            made.shape(mbit * 1e6 / 8)
            for bucket_mb in settings.bucket_mb:
                commands = [command(rank, n, made.address(0), steps, bucket_mb) for rank in range(n)]
                seconds = np.array(made.run(commands, LIMIT_S)[0].split(), float)
                ours = simulated(n, mbit, steps, bucket_mb, compute)
                yield {
                    "ranks": n, "mbit": mbit, "bucket_mb": bucket_mb, "compute_ms": 1e3 * compute,
                    "simulated_ms": 1e3 * ours, **figures(measured_ms=1e3 * seconds),
                    "error": 100 * (ours / float(np.median(seconds)) - 1),
                }  # fmt: skip
