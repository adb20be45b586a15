"""How far a step in virtual time is from one on a network of the kernel's, point by point.

python -m benchmarks accuracy --out accuracy.json --picture accuracy.png    # as root: it makes network namespaces

Measured: ranks in namespaces whose links `tc` shapes (see `namespaces.py`), started by torchrun, with gloo; they train
for some steps. Asynchronous strategies take more, of which the second half counts, since their workers first find an
order. simulated_ms: as many steps in virtual time, on the same number of cores. predicted_ms: by the closed form.
error is simulated_ms / measured_ms - 1, in percent; held_out: whether the calibration has not seen the point.

The clock is calibrated on the phases of a single rank, and on one network point, 3 ranks at 1 Gbit/s, which gives three
numbers: what a message takes beside its bytes (latency_ms), what a byte takes of the cores at each end (copying_ns),
and how unevenly cores serve the ranks (jitter).
"""

import json
import pickle
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmarks import common, points
from benchmarks.common import Row, figures
from benchmarks.namespaces import DEVICE, namespaces
from benchmarks.points import BATCH, LIMIT_S, NETWORKS, Point, build
from benchmarks.prediction import periods
from experiments import drawing
from gradwire.core.records.errors import as_usage_error
from gradwire.core.records.machine import usable_cores
from gradwire.core.strategy.tensors import layout_of
from gradwire.core.workloads import datasets
from gradwire.names import make_strategy
from gradwire.networks.predict import predict
from gradwire.virtual_time.calibration import time_phases
from gradwire.virtual_time.cluster import ClusterOptions, Compute
from gradwire.virtual_time.dry_run import period
from gradwire.virtual_time.handling import Handling
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.steps import Sizes, Steps, StepsJob, seconds_of_a_step, take_steps
from strategies import Strategy

STRATEGIES: tuple[Strategy, ...] = tuple(map(make_strategy, (
    "param_server", "sharded_param_server", "ring_all_reduce", "overlapped_ring", "local_sgd", "async_param_server",
    "dgs",
)))  # fmt: skip
OTHERS: tuple[Strategy, ...] = tuple(map(make_strategy, (
    "naive_all_reduce", "sharded_ring", "all_gather", "gossip", "sparta", "backup_workers",
)))  # fmt: skip
"""What else has a closed form: measured with one network at one bandwidth."""
OF_OTHERS = ("cnn", 100)
Measured = tuple[Point, int, float, list[float]]  # how many steps; the seconds of one, and of each period of them
_MOST = 0.2
CALIBRATED = (3, 1000)
"""The ranks and Mbit/s of the network point on which the clock is calibrated."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
MARKERS = {10: ("o", -0.2), 100: ("s", 0.0), 1000: ("^", 0.2)}  # of Mbit/s; how far from the middle of a group
OTHER = "others, cnn at 100 Mbit/s"


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the benchmark of virtual time against the kernel's network."""

    repeats: int = 8
    """How many steps are timed, after some others; fewer where they take longer than `seconds`."""
    seconds: float = 20.0
    """How long the steps of a point should take at most; at least two are timed."""
    ranks: tuple[int, ...] = (2, 3, 4)
    """Numbers of ranks."""
    mbit: tuple[int, ...] = (10, 100, 1000)
    """Bandwidths of the links, in Mbit/s."""
    figures: Path | None = None
    """Measure nothing: take the figures that --out has kept in this file."""
    picture: Path | None = None
    """Draw the figures in this file (PNG)."""


@dataclass(frozen=True)
class Clock:
    """The machine as virtual time knows it: the phases of each network, and the cost of a message."""

    phases: dict[str, dict[str, float]]  # by network and, for codecs, strategy
    latency: float = 0.0  # seconds
    copying: float = 0.0  # seconds a byte
    jitter: float = 0.0
    handling: Handling | None = None  # of a message, beside `copying`
    acknowledged: float = 0.0  # see Network

    def simulate(self, point: Point, steps: int) -> float:
        """Return the seconds of a step in virtual time."""
        options, model = replace(point.options, jitter=self.jitter), build(point.network)
        layout = layout_of(model)
        sizes = Sizes(layout.n, 0, layout, tuple(p.numel() / layout.n for p in model.parameters()))
        network = ClusterOptions().make_network(replace(options, latency=f"{self.latency * 1e9:.0f}ns"))
        network.acknowledged = self.acknowledged
        phases = self.phases[f"{point.network} {point.strategy.name}"]
        time = VirtualTime(
            network, Compute(options, phases), compute=False, cores=len(usable_cores()), copying=self.copying,
            handling=self.handling,
        )  # fmt: skip
        run = {"device": "meta", "roles": options.roles, "on_report": lambda *_: None, "seed": options.seed}
        results = time.launch(take_steps, point.n, StepsJob(options, sizes, BATCH, steps), **run)
        return of_a_step(results, point)[0]

    def predict(self, point: Point) -> float | None:
        """Return the milliseconds of a step in closed form, with all that a worker computes; None where it has none."""
        phases, link = self.phases[f"{point.network} {point.strategy.name}"], point.options.link
        assert link is not None
        compute = sum(phases[name] for name in ("forward", "backward", "update"))
        nbytes = 4 * layout_of(build(point.network)).n
        seconds = predict(point.strategy, point.n, nbytes, compute, link.bandwidth, self.latency)
        return None if seconds is None else 1e3 * seconds


def of_a_step(results: list[Steps], point: Point) -> tuple[float, list[float]]:
    """Return the seconds of a step, and of each period of steps by itself."""
    roles, length = point.options.roles, period(point.strategy)
    each = periods(results, roles, length)
    if point.strategy.traits.asynchronous:
        return seconds_of_a_step(results, roles, length), each.tolist()
    return float(np.median(each)), each.tolist()


def measure_kernel(grid: Sequence[Point], steps: list[int]) -> list[list[Steps]]:
    """Return what the ranks of each point returned; all have one number of ranks and one bandwidth."""
    n, mbit = grid[0].n, grid[0].mbit
    with tempfile.TemporaryDirectory() as folder, namespaces(n) as made:
        made.shape(mbit * 1e6 / 8)
        jobs, results = Path(folder) / "jobs", Path(folder) / "results"
        jobs.write_bytes(pickle.dumps([point.job(count) for point, count in zip(grid, steps, strict=True)]))
        torchrun = [
            "env", f"GLOO_SOCKET_IFNAME={DEVICE}", sys.executable, "-m", "torch.distributed.run", f"--nnodes={n}",
            "--nproc-per-node=1", "--master-port=29500", f"--master-addr={made.address(0)}",
        ]  # fmt: skip
        here = [points.__file__, str(jobs), str(results)]
        made.run([[*torchrun, f"--node-rank={rank}", *here] for rank in range(n)], 3 * LIMIT_S)
        by_rank: list[list[Steps]] = pickle.loads(results.read_bytes())
    return [list(of_point) for of_point in zip(*by_rank, strict=True)]


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row per point, and draw them. Raises UsageError if there are no figures to draw."""
    if settings.figures is None:
        rows = list(measure_points(settings))
    else:
        kinds = (OSError, ValueError, KeyError, TypeError)
        with as_usage_error(f"--figures {settings.figures}: no figures of the benchmark", "", kinds):
            rows = json.loads(settings.figures.read_text(encoding="utf-8"))["rows"]
    yield from rows
    if settings.picture is not None:
        draw(rows, settings.picture)


def measure_points(settings: Settings) -> Iterator[Row]:
    """Yield one row per point."""
    alone = [Point(strategy, network, 3, 1000) for network in NETWORKS for strategy in (*STRATEGIES, *OTHERS)]
    clock = Clock({
        f"{point.network} {point.strategy.name}": time_phases(point.options, datasets.load(point.options))
        for point in alone
    })  # fmt: skip
    measured: list[Measured] = []
    for n, mbit in product(settings.ranks, settings.mbit):
        grid = [
            Point(strategy, network, n, mbit) for strategy, network in product((*STRATEGIES, *OTHERS), NETWORKS)
            if strategy.traits.ranks[0] <= n and (strategy in STRATEGIES or (network, mbit) == OF_OTHERS)
        ]  # fmt: skip
        steps = [count_steps(settings, point, clock.simulate(point, 9)) for point in grid]
        for point, count, found in zip(grid, steps, measure_kernel(grid, steps), strict=True):
            measured.append((point, count, *of_a_step(found, point)))
    yield from compare(clock, measured)


def compare(clock: Clock, measured: list[Measured]) -> Iterator[Row]:
    """Calibrate the clock on some of the points; yield one row per point."""
    clock = calibrate_network(clock, measured)
    for point, steps, seconds, each in measured:
        simulated = clock.simulate(point, steps)
        yield {
            "strategy": point.strategy.name, "network": point.network, "ranks": point.n, "mbit": point.mbit,
            "predicted_ms": clock.predict(point), "simulated_ms": simulated * 1e3,
            **figures(measured_ms=[1e3 * seconds for seconds in each]), "measured_ms": seconds * 1e3,
            "error": 100 * (simulated / seconds - 1),
            "held_out": "no" if (point.n, point.mbit) == CALIBRATED else "yes",
            "latency_ms": clock.latency * 1e3, "copying_ns": clock.copying * 1e9, "jitter": clock.jitter,
        }  # fmt: skip


def count_steps(settings: Settings, point: Point, seconds: float) -> int:
    """Return how many steps are taken: some, that are not timed, and at least two periods."""
    length, is_asynchronous = period(point.strategy), point.strategy.traits.asynchronous
    most = settings.repeats * (5 if is_asynchronous else 1)
    periods = max(2, min(most, int(settings.seconds / seconds / length)))
    return length * (periods + (4 if is_asynchronous else 1))


def calibrate_network(clock: Clock, measured: list[Measured]) -> Clock:
    """Return the clock with the latency, copying and jitter by which the errors of the calibrated points are smallest.

    Asynchronous strategies do not count, since the order that their workers find is a matter of chance, and an error
    counts as `_MOST` at most, so that no point outweighs the others.
    """
    from scipy.optimize import brute, minimize  # here, for it takes seconds to load

    known = [
        (point, steps, seconds) for point, steps, seconds, _ in measured
        if (point.n, point.mbit) == CALIBRATED and not point.strategy.traits.asynchronous
    ]  # fmt: skip

    def made(values: Sequence[float]) -> Clock:
        latency, copying, jitter = (max(0.0, value) for value in values)
        return replace(clock, latency=1e-3 * latency, copying=1e-9 * copying, jitter=min(1.0, jitter))

    def error(values: Sequence[float]) -> float:
        errors = (made(values).simulate(point, steps) / seconds - 1 for point, steps, seconds in known)
        return statistics.fmean(min(_MOST, abs(error)) for error in errors)

    grid = (slice(0.1, 1.3, 0.3), slice(1, 4, 1), slice(0, 0.6, 0.2))  # milliseconds, nanoseconds a byte
    best = brute(error, grid, finish=partial(minimize, method="Nelder-Mead", options={"maxfev": 60}))
    return made(best)


def summary(rows: list[Row]) -> str:
    """Return the mean and the worst error of the points that are held out."""
    errors = [row["error"] for row in rows if row["held_out"] == "yes"]
    worst = max(errors, key=abs)
    mean = statistics.fmean(abs(error) for error in errors)
    return f"held out: {len(errors)} points, mean absolute error {mean:.1f} %, worst {worst:+.1f} %"


def draw(measured: list[Row], out: Path) -> None:
    """Draw what was simulated, and what the closed forms say, against what was measured."""
    rows = pd.DataFrame(measured)
    counts = rows["strategy"].value_counts()
    often = [name for name in rows["strategy"].unique() if counts[name] > 3]
    rows["group"] = rows["strategy"].where(rows["strategy"].isin(often), OTHER)
    groups = list(rows["group"].unique())
    colours = dict(zip(groups, [*COLOURS, "#999999"], strict=False))
    figure, (left, right) = drawing.sheet(5, 1, 2, 10, width_ratios=(1, 1.1))
    _scatter(left, rows, colours)
    _errors(right, rows, groups, colours)
    figure.suptitle(f"A step on the kernel's network; {summary(measured)}", fontsize=10)
    drawing.save(figure, out)


def _scatter(axes: Axes, rows: pd.DataFrame, colours: dict[str, str]) -> None:
    low, high = 0.7 * rows["measured_ms"].min(), 1.4 * rows["measured_ms"].max()
    axes.plot([low, high], [low, high], color="#bbbbbb", lw=1, zorder=0)
    for name, of in rows.groupby("group", sort=False):
        told = of.dropna(subset=["predicted_ms"])
        axes.scatter(told["measured_ms"], told["predicted_ms"], s=40, facecolors="none", edgecolors=colours[str(name)])
        axes.scatter(of["measured_ms"], of["simulated_ms"], s=8, color=colours[str(name)], label=name)
    axes.scatter([], [], s=8, color="#666666", label="dot: virtual time")
    axes.scatter([], [], s=40, facecolors="none", edgecolors="#666666", label="ring: closed form")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="measured, ms a step", ylabel="simulated or predicted, ms a step")
    axes.legend(fontsize=7, loc="upper left", frameon=False)


def _errors(axes: Axes, rows: pd.DataFrame, groups: list[str], colours: dict[str, str]) -> None:
    for mbit, (marker, aside) in MARKERS.items():
        of = rows[rows["mbit"] == mbit]
        places, edges = of["group"].map(groups.index) + aside, of["group"].map(colours)
        faces = edges.where(of["held_out"] != "no", "none")
        axes.scatter(of["error"], places, marker=marker, s=18, facecolors=faces, edgecolors=edges, lw=0.8)
        axes.scatter([], [], marker=marker, s=18, color="#666666", label=f"{mbit} Mbit/s")
    axes.scatter([], [], s=18, facecolors="none", edgecolors="#666666", label="hollow: calibrated on")
    axes.axvspan(-5, 5, color="#eeeeee", zorder=0)
    axes.axvline(0, color="#bbbbbb", lw=1, zorder=0)
    axes.set_yticks(range(len(groups)), labels=groups, fontsize=8)
    axes.set(ylim=(len(groups) - 0.5, -0.5), xlabel="virtual time against measured, % (grey: 5 %)")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=4, fontsize=7, frameon=False)
