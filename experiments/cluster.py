"""What a cluster would do: runs in virtual time, on machines and networks that are numbers.

The same bits on every machine with the same torch, so one file holds all of it: CLUSTER, one row a run.
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from experiments.collect import KEPT, folder
from launchers.devices import usable_cores
from records.atomic import AnyPath, write_together
from records.errors import RunFailed, UsageError
from records.machine import git_commit, machine
from simulate import simulate
from strategies import Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.synchronous_server.backup_workers import BackupWorkers
from strategies.synchronous_server.param_server import ParamServer
from training import Options
from virtual_time.cluster import ClusterOptions

CLUSTER = "cluster.csv"
PREDICTION = Path("benchmarks") / "prediction.json"
STRATEGIES: dict[str, Strategy] = {
    "ring": RingAllReduce(),
    "server": ParamServer(),
    "bound 1": AsyncParamServer(max_staleness=1),
    "bound 8": AsyncParamServer(max_staleness=8),
    "asynchronous": AsyncParamServer(),
    "backup": BackupWorkers(),
}
SCALED = ("ring", "server", "bound 1", "bound 8", "asynchronous")
WORKERS = (1, 4, 16, 64)
GBIT = (1, 10)
RATES = (0.003125, 0.0125, 0.05, 0.2)
SEEDS, TUNING_SEED = (1, 2, 3), 0
COMPUTE, LATENCY, JITTER = "10ms", "50us", 0.2
_SLOW = 5  # times as slow
_RACKS = 4


@dataclass(frozen=True)
class Case:
    """A run. `question`: grid, scaling, slow or racks."""

    question: str
    strategy: str
    workers: int
    lr: float
    gbit: int
    seed: int
    slow: bool = False  # whether the last worker is
    racks: int = 1
    uplink: float | None = None  # Gbit/s of each rack

    def options(self, common: dict[str, Any]) -> Options:
        """Return the run's options."""
        strategy = STRATEGIES[self.strategy]
        n_gpus = self.workers + strategy.roles(8).count("server")
        slow = (f"{n_gpus - 1}:{_SLOW}",) if self.slow else ()
        return Options(
            strategy=strategy, n_gpus=n_gpus, lr=self.lr, momentum=0.0, seed=self.seed, slow=slow,
            jitter=JITTER, bandwidth=f"{self.gbit}gbit", latency=LATENCY, **common,
        )  # fmt: skip


def common(quick: bool, data_dir: str) -> dict[str, Any]:
    """Return the options that all runs share."""
    shared = {"data_dir": data_dir, "model": "mlp", "batch_size": 16}
    if quick:
        return {**shared, "dataset": "digits", "train_size": 300, "epochs": 1}
    return {**shared, "dataset": "fashion_mnist", "train_size": 10_000, "epochs": 2}


def grid(quick: bool) -> list[Case]:
    """Return the runs that tell each strategy's learning rate for each number of workers."""
    return [
        Case("grid", name, workers, lr, GBIT[-1], TUNING_SEED)
        for name in SCALED for workers in (WORKERS[:2] if quick else WORKERS) for lr in (RATES[1:3] if quick else RATES)
    ]  # fmt: skip


def finals(rates: dict[tuple[str, int], float], quick: bool) -> list[Case]:
    """Return the runs that are shown, with these learning rates by strategy and workers."""
    seeds = SEEDS[:1] if quick else SEEDS
    many = WORKERS[1] if quick else WORKERS[2]

    def case(question: str, name: str, workers: int, gbit: int, seed: int, **more: Any) -> Case:
        return Case(question, name, workers, rates["server" if name == "backup" else name, workers], gbit, seed, **more)

    scaling = [case("scaling", name, workers, gbit, seed) for name, workers in rates for gbit in GBIT for seed in seeds]
    slow = [
        case("slow", name, many, GBIT[-1], seed, slow=slow)
        for name in STRATEGIES for slow in (False, True) for seed in seeds
    ]  # fmt: skip
    racks = [
        case("racks", name, many, GBIT[0], seeds[0], racks=racks, uplink=uplink)
        for name in ("ring", "server", "asynchronous") for racks, uplink in ((1, None), (_RACKS, 1.0), (_RACKS, 0.25))
    ]  # fmt: skip
    return scaling + slow + racks


def tuned(rows: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return for each strategy and number of workers the rate of the grid with the best accuracy."""
    rows = rows[rows["question"] == "grid"].sort_values(["accuracy", "lr"], ascending=[False, True])
    best = rows.groupby(["strategy", "workers"], sort=False)["lr"].first()
    return {
        (name, workers): float(best[name, workers]) for name in SCALED for workers in sorted(rows["workers"].unique())
    }


def _run(case: Case, shared: dict[str, Any]) -> dict[str, Any]:
    """Make one run; return its row. That a loss becomes nan is a result: no accuracy."""
    with tempfile.TemporaryDirectory() as results_dir:
        options = case.options(shared | {"results_dir": results_dir})
        try:
            uplink = None if case.uplink is None else f"{case.uplink:g}gbit"
            machines = ClusterOptions(compute=COMPUTE, racks=case.racks, rack_bandwidth=uplink)
            done = simulate(options, machines, quiet=True)
            figures, cards = done.figures(), done.cards
        except RunFailed as error:
            if "take a smaller --lr" not in str(error):
                raise
            figures, cards = {}, []
    return {
        **dataclasses.asdict(case),
        "seconds": figures.get("virtual_s"),
        "speedup": figures.get("speedup"),
        "accuracy": figures.get("test_accuracy"),
        "busiest_card": cards[0][0].name if cards else "none",
        "busy_percent": cards[0][1] if cards else 0.0,
    }


def _take_core(numbers: SimpleQueue[int]) -> None:
    """Keep this process to one core of its own, since a run in virtual time uses one."""
    number = numbers.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})


def cores() -> ProcessPoolExecutor:
    """Return a process for each core."""
    context = get_context("spawn")
    numbers = context.SimpleQueue()
    for number in range(len(usable_cores())):
        numbers.put(number)
    return ProcessPoolExecutor(len(usable_cores()), context, _take_core, (numbers,))


def record(path: AnyPath, data_dir: str = "data", quick: bool = False) -> None:
    """Make all runs; write them, and beside them what they share (JSON). Raises RunFailed, OSError."""
    shared = common(quick, data_dir)
    with cores() as pool:

        def rows(cases: list[Case], what: str) -> Iterator[dict[str, Any]]:
            jobs = pool.map(_run, cases, [shared] * len(cases))
            yield from tqdm(jobs, total=len(cases), desc=what, unit="run", leave=False)

        first = pd.DataFrame(rows(grid(quick), "learning rates"))
        rest = pd.DataFrame(rows(finals(tuned(first), quick), "cluster"))
    about = {name: value for name, value in shared.items() if name != "data_dir"}
    about |= {
        "compute": COMPUTE,
        "latency": LATENCY,
        "jitter": JITTER,
        "machine": machine(),
        "git_commit": git_commit(),
    }
    path = Path(path)
    with write_together([path, path.with_suffix(".json")]) as (table, facts):
        pd.concat([first, rest]).to_csv(table, index=False)
        facts.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Cluster:
    """What is known: rows of runs (the fields of Case, seconds, speedup, accuracy, busiest card), and of predictions.

    `speedup`: times the samples/s of a worker alone that needs no network.
    """

    runs: pd.DataFrame
    facts: dict[str, Any]
    predictions: pd.DataFrame

    def of(self, question: str) -> pd.DataFrame:
        """Return the runs of one question."""
        return self.runs[self.runs["question"] == question]


def load(directory: str | Path | None = None) -> Cluster:
    """Return the results in `directory`; by default those named by $EXPERIMENT_RESULTS, or those of the repository.

    The predictions are those of the benchmark there; where there are none, of the repository's. Raises UsageError.
    """
    where = folder(directory)
    if not (where / CLUSTER).exists():
        raise UsageError(f"no {CLUSTER} in {where}: make it with python experiments/run.py cluster")
    facts = json.loads((where / CLUSTER).with_suffix(".json").read_text(encoding="utf-8"))
    predicted = where / PREDICTION if (where / PREDICTION).exists() else KEPT / PREDICTION
    rows = json.loads(predicted.read_text(encoding="utf-8"))["rows"]
    return Cluster(pd.read_csv(where / CLUSTER), facts, pd.DataFrame(rows))


def is_measured(directory: Path) -> bool:
    """Return whether the results are there, and not those of a quick trial."""
    facts = (directory / CLUSTER).with_suffix(".json")
    return facts.exists() and json.loads(facts.read_text(encoding="utf-8"))["dataset"] != "digits"


def provenance(cluster: Cluster) -> str:
    """Return in one line what the runs are of."""
    facts = cluster.facts
    data = f"{facts['dataset']}, {facts.get('train_size') or 'all'} training samples"
    return (
        f"{data}, {facts['model']}, {facts['batch_size']} samples a worker and step, {facts['epochs']} epochs; a step "
        f"computes {facts['compute']}, jitter {facts['jitter']}; "
        f"torch {facts['machine']['torch']}, commit {str(facts['git_commit'])[:10]}"
    )
