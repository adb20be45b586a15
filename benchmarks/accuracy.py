"""A step in virtual time takes what it takes on a network of the kernel's: within 5 percent on average, 15 at most.

python -m benchmarks.accuracy --out accuracy.json     # as root: it makes network namespaces

Measured: ranks in namespaces whose links `tc` shapes (see `namespaces.py`), started by torchrun, with gloo; they train
for some steps. simulated_ms: the same steps in virtual time, on the same number of cores. The clock is calibrated on
the passes of a single rank, and on one network point: the ring of 2 ranks at 1 Gbit/s, with both networks, from which
the two unknowns follow: what a message takes beside its bytes, and what copying a byte takes. error is simulated_ms /
measured_ms - 1, in percent; held_out: whether calibration has not seen the point.
"""

import pickle
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Settings, figure, main
from benchmarks.namespaces import namespaces
from benchmarks.networks import INPUT_SHAPE, N_CLASSES, cnn, new_batch
from launchers.devices import usable_cores
from launchers.launcher import Job
from strategies import Strategy
from strategies.all_reduce.overlapped_ring import OverlappedRing
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.asynchronous_server.dgs import DGS
from strategies.common.replica import layout_of
from strategies.local_models.local_sgd import LocalSGD
from strategies.synchronous_server.param_server import ParamServer
from strategies.synchronous_server.sharded_param_server import ShardedParamServer
from training.checks import resolve
from training.options import Options
from transports.base import Transport
from virtual_time.calibration import time_phases
from virtual_time.cluster import ClusterOptions, Compute
from virtual_time.dry_run import period
from virtual_time.launcher import VirtualTime
from virtual_time.steps import Sizes, Steps, StepsJob, seconds_of_a_step, take_steps
from workloads import datasets

STRATEGIES: tuple[Strategy, ...] = (
    ParamServer(), ShardedParamServer(), RingAllReduce(), OverlappedRing(), LocalSGD(), AsyncParamServer(), DGS(),
)  # fmt: skip
BATCH = 16
CALIBRATED = (2, 1000)
"""The ranks and Mbit/s of the network point, of the ring, on which the clock is calibrated."""
_LIMIT_S = 300.0


def small_mlp(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return two hidden layers of 512: 0.7 million parameters for 28 x 28 pixels."""
    first, second = nn.Linear(784, 512), nn.Linear(512, 512)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(512, n_classes))


def pictures() -> tuple[torch.Tensor, ...]:
    """Return a data set of noise: batches for the calibration."""
    return *new_batch(0, 10 * BATCH), *new_batch(1, BATCH)


NETWORKS = {"cnn": cnn, "mlp": small_mlp}


@dataclass(frozen=True)
class AccuracySettings(Settings):
    """Options of the benchmark of virtual time against the kernel's network."""

    repeats: int = 8
    """How many steps are timed, after some others; fewer where they take longer than `seconds`."""
    seconds: float = 20.0
    """How long the steps of a point should take at most; at least two are timed."""
    ranks: tuple[int, ...] = (2, 3, 4)
    """Numbers of ranks."""
    mbit: tuple[int, ...] = (10, 100, 1000)
    """Bandwidths of the links, in Mbit/s."""


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
        model = f"benchmarks.accuracy:{'cnn' if self.network == 'cnn' else 'small_mlp'}"
        return resolve(Options(
            strategy=self.strategy, n_gpus=self.n, device="cpu", batch_size=BATCH, model=model, momentum=0.9, lr=0.01,
            dataset="benchmarks.accuracy:pictures", bandwidth=f"{self.mbit}mbit", latency="0s",
        ))  # fmt: skip

    def job(self, steps: int) -> StepsJob:
        """Return the steps as real ranks take them."""
        return StepsJob(self.options, Sizes(1), BATCH, steps, network=partial(build, self.network),
                        batch=partial(new_batch, batch_size=BATCH))  # fmt: skip


def build(network: str) -> nn.Module:
    """Return a network, its parameters the same in every process."""
    torch.manual_seed(0)
    return NETWORKS[network](INPUT_SHAPE, N_CLASSES)


@dataclass(frozen=True)
class Clock:
    """What virtual time is told of the machine: the phases of each network, and what a message costs."""

    phases: dict[str, dict[str, float]]  # by network and, for codecs, strategy
    latency: float = 0.0  # seconds
    copying: float = 0.0  # seconds a byte

    def simulate(self, point: Point, steps: int) -> float:
        """Return the seconds of a step in virtual time."""
        options, model = point.options, build(point.network)
        layout = layout_of(model)
        sizes = Sizes(layout.n, 0, layout, tuple(p.numel() / layout.n for p in model.parameters()))
        network = ClusterOptions().network(replace(options, latency=f"{self.latency * 1e9:.0f}ns"))
        phases = self.phases[f"{point.network} {point.strategy.name}"]
        time = VirtualTime(
            network, Compute(options, phases), compute=False, cores=len(usable_cores()), copying=self.copying
        )
        job = StepsJob(options, sizes, BATCH, steps)
        results = time.launch(
            take_steps, point.n, job, device="meta", roles=options.roles, on_report=lambda *_: None, seed=options.seed
        )
        return of_a_step(results, point)[0]


def of_a_step(results: list[Steps], point: Point) -> tuple[float, list[float]]:
    """Return the seconds of a step, and of each period of steps by itself."""
    roles, length = point.options.roles, period(point.strategy)
    workers = [one.ends for one, role in zip(results, roles, strict=True) if role == "worker"]
    least = min(map(len, workers)) // length * length
    ends = np.array([times[length - 1 : least : length] for times in workers])
    each = np.diff(ends, axis=1).mean(axis=0) / length
    seconds = (
        seconds_of_a_step(results, roles, length) if point.strategy.traits.asynchronous else float(np.median(each))
    )
    return seconds, each.tolist()


def calibrate_phases() -> dict[str, dict[str, float]]:
    """Return the seconds of the phases of a step of one rank alone, by network and strategy."""
    found = {}
    for network in NETWORKS:
        for strategy in STRATEGIES:
            options = Point(strategy, network, 3, 1000).options
            found[f"{network} {strategy.name}"] = time_phases(options, datasets.load(options))
    return found


def on_rank(transport: Transport, report: Callable[[str], None], jobs: list[StepsJob]) -> list[Steps]:
    """Take the steps of all points, one point after the other."""
    torch.set_num_threads(1)
    done = []
    for job in jobs:
        torch.set_num_threads(max(1, len(usable_cores()) // transport.world_size))
        done.append(take_steps(transport, report, job))
        transport.barrier()
    return done


def measure_kernel(points: list[Point], steps: list[int]) -> list[list[Steps]]:
    """Return what the ranks of each point returned; all have one number of ranks and one bandwidth."""
    n, mbit = points[0].n, points[0].mbit
    with tempfile.TemporaryDirectory() as folder, namespaces(n) as made:
        made.shape(mbit * 1e6 / 8)
        jobs, results = Path(folder) / "jobs", Path(folder) / "results"
        jobs.write_bytes(pickle.dumps([point.job(count) for point, count in zip(points, steps, strict=True)]))
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={n}", "--nproc-per-node=1", "--master-port=29500",
            f"--master-addr={made.address(0)}",
        ]  # fmt: skip
        here = [str(Path(__file__).with_name("accuracy_rank.py")), str(jobs), str(results)]
        made.run([[*torchrun, f"--node-rank={rank}", *here] for rank in range(n)], 3 * _LIMIT_S)
        by_rank: list[list[Steps]] = pickle.loads(results.read_bytes())
    return [list(one) for one in zip(*by_rank, strict=True)]


def as_job(jobs: list[StepsJob], n: int) -> Job:
    """Return what torchrun's ranks do."""
    return Job(on_rank, n, (jobs,), timeout=_LIMIT_S, on_report=lambda *_: None)


def measure(settings: AccuracySettings) -> Iterator[Row]:
    """Yield one row per point."""
    clock = Clock(calibrate_phases())
    measured: dict[Point, tuple[float, list[float]]] = {}
    for n in settings.ranks:
        for mbit in settings.mbit:
            points = [
                Point(strategy, network, n, mbit)
                for strategy in STRATEGIES
                for network in NETWORKS
                if strategy.traits.ranks[0] <= n
            ]
            steps = [count_steps(settings, point, clock.simulate(point, 9)) for point in points]
            for point, results in zip(points, measure_kernel(points, steps), strict=True):
                measured[point] = of_a_step(results, point)
    clock = calibrate_network(clock, measured)
    for point, (seconds, each) in measured.items():
        simulated = clock.simulate(point, 41)
        yield {
            "strategy": point.strategy.name,
            "network": point.network,
            "ranks": point.n,
            "mbit": point.mbit,
            "simulated_ms": simulated * 1e3,
            **figure("measured_ms", [1e3 * one for one in each]),
            "measured_ms": seconds * 1e3,
            "error": 100 * (simulated / seconds - 1),
            "held_out": "no" if is_calibrated(point) else "yes",
        }


def count_steps(settings: AccuracySettings, point: Point, seconds: float) -> int:
    """Return how many steps are taken: some, that are not timed, and at least two periods."""
    length = period(point.strategy)
    periods = max(2, min(settings.repeats, int(settings.seconds / seconds / length)))
    return length * (periods + (4 if point.strategy.traits.asynchronous else 1))


def is_calibrated(point: Point) -> bool:
    """Whether the clock is calibrated on this point."""
    return point.strategy.name == RingAllReduce.name and (point.n, point.mbit) == CALIBRATED


def calibrate_network(clock: Clock, measured: dict[Point, tuple[float, list[float]]]) -> Clock:
    """Return the clock with the latency and the copying by which the calibrated points take what was measured."""
    known = {point: seconds for point, (seconds, _) in measured.items() if is_calibrated(point)}
    mlp, cnn = (next(point for point in known if point.network == network) for network in ("mlp", "cnn"))
    for _ in range(10):  # each of the two moves the other
        clock = bisect(known[mlp], 5e-3, lambda value: replace(clock, latency=value), mlp)  # noqa: B023
        clock = bisect(known[cnn], 1e-8, lambda value: replace(clock, copying=value), cnn)  # noqa: B023
    return clock


def bisect(seconds: float, most: float, make: Callable[[float], Clock], point: Point) -> Clock:
    """Return the clock by which a step of a point takes so many seconds, its value being between 0 and `most`."""
    low, high = 0.0, most
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if make(middle).simulate(point, 3) > seconds else (middle, high)
    return make(low)


def summary(rows: list[Row]) -> str:
    """Return the mean and the worst error of the points that are held out."""
    errors = [row["error"] for row in rows if row["held_out"] == "yes"]
    worst = max(errors, key=abs)
    mean = statistics.fmean(abs(error) for error in errors)
    return f"held out: {len(errors)} points, mean absolute error {mean:.1f} %, worst {worst:+.1f} %"


if __name__ == "__main__":
    sys.exit(main(__doc__, AccuracySettings, measure))
