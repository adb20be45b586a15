"""The points of `accuracy.py`: network, strategy and number of ranks; and the work of a rank, started by torchrun.

As a script: argv is a file of jobs, and where the results go.
"""

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.networks import new_batch, new_network
from gradwire.clusters.torchrun import launcher
from gradwire.core.launchers.launcher import Job
from gradwire.core.records.machine import usable_cores
from gradwire.core.training.checks import resolve
from gradwire.core.transports.base import Transport
from gradwire.options import Options
from gradwire.virtual_time.steps import Sizes, Steps, StepsJob, take_steps
from strategies import Strategy

LIMIT_S = 300.0
BATCH = 16


def pictures() -> tuple[torch.Tensor, ...]:
    """Return a data set of noise: batches for the calibration."""
    return *new_batch(0, 10 * BATCH), *new_batch(1, BATCH)


NETWORKS: dict[str, dict[str, int]] = {"cnn": {}, "mlp": {"width": 512}}  # with options


@dataclass(frozen=True)
class Point:
    """One cell of the grid."""

    strategy: Strategy
    network: str
    n: int
    mbit: int

    @property
    def options(self) -> Options:
        """The run."""
        model_options = ",".join(f"{name}={value}" for name, value in NETWORKS[self.network].items())
        return resolve(Options(
            strategy=self.strategy, n_gpus=self.n, device="cpu", batch_size=BATCH, momentum=0.9, lr=0.01,
            model=f"benchmarks.networks:{self.network}", model_options=model_options,
            dataset="benchmarks.points:pictures", bandwidth=f"{self.mbit}mbit", latency="0s",
        ))  # fmt: skip

    def job(self, steps: int) -> StepsJob:
        """Return the steps as real ranks take them."""
        return StepsJob(self.options, Sizes(1), BATCH, steps, passes=partial(passes_of, self.network))


def build(network: str) -> nn.Module:
    """Return a network, its parameters the same in every process."""
    return new_network(network, **NETWORKS[network])


def passes_of(network: str, rank: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the network and the batch of a rank."""
    return build(network), *new_batch(rank, BATCH)


def on_rank(transport: Transport, report: Callable[[str], None], jobs: list[StepsJob]) -> list[Steps]:
    """Take the steps of all points, one point after the other."""
    torch.set_num_threads(max(1, len(usable_cores()) // transport.world_size))  # each namespace counts as a machine
    done = []
    for job in jobs:
        done.append(take_steps(transport, report, job))
        transport.barrier()
    return done


if __name__ == "__main__":
    jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
    torchrun = launcher()
    job = Job(on_rank, torchrun.world_size or 1, (jobs,), timeout=LIMIT_S, on_report=lambda *_: None)
    results = torchrun.launch(job)
    if torchrun.is_first:
        Path(sys.argv[2]).write_bytes(pickle.dumps(results))
