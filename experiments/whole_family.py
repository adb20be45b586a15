"""The whole family on one page: every strategy at the same budget of samples, in processes and in virtual time.

One file, WHOLE, a row for each run and epoch. Real runs have 4 ranks of this machine, of which a server may be one,
and the same global batch; in virtual time there are 16 or 64 workers, a server beside them.
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from experiments.cluster import cores
from experiments.collect import folder
from records.errors import RunFailed, UsageError
from records.events import METERS
from records.files import AnyPath, git_commit, machine, write_together
from simulate import check
from strategies import Strategy
from strategies.all_reduce.all_gather import AllGather
from strategies.all_reduce.naive_all_reduce import NaiveAllReduce
from strategies.all_reduce.overlapped_ring import OverlappedRing
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.all_reduce.sharded_ring import ShardedRing
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.asynchronous_server.dgs import DGS
from strategies.asynchronous_server.downpour import Downpour
from strategies.asynchronous_server.easgd import ElasticAveraging
from strategies.asynchronous_server.inconsistent_reads import InconsistentReads
from strategies.local_models.ad_psgd import ADPSGD
from strategies.local_models.gossip import Gossip
from strategies.local_models.local_sgd import LocalSGD
from strategies.local_models.none import NoCommunication
from strategies.local_models.sparta import Sparta
from strategies.lock_free.hogwild import Hogwild
from strategies.lock_free.hogwild_pp import HogwildPP
from strategies.synchronous_server.backup_workers import BackupWorkers
from strategies.synchronous_server.param_server import ParamServer
from strategies.synchronous_server.sharded_param_server import ShardedParamServer
from training import Options, run
from virtual_time.cluster import ClusterOptions, Compute, phase_seconds
from virtual_time.launcher import VirtualTime

WHOLE = "whole_family.csv"
REAL, VIRTUAL = "real", "virtual"
STRATEGIES: dict[str, dict[str, Strategy]] = {  # by group
    "a server, in step": {
        "server": ParamServer(), "4 servers": ShardedParamServer(servers=4), "1 backup worker": BackupWorkers(),
    },
    "a server, nobody waits": {
        "asynchronous": AsyncParamServer(), "inconsistent reads": InconsistentReads(),
        "Downpour, every 4": Downpour(n_push=4, n_fetch=4), "EASGD": ElasticAveraging(), "DGS": DGS(),
    },
    "all-reduce": {
        "ring": RingAllReduce(), "overlapped ring": OverlappedRing(bucket_mb=0.25), "sharded ring": ShardedRing(),
        "naive": NaiveAllReduce(), "all-gather": AllGather(),
    },
    "models of their own": {
        "local SGD, every 5": LocalSGD(local_steps=5),
        "DiLoCo, every 10": LocalSGD(local_steps=10, outer_optimizer="nesterov"),
        "SPARTA": Sparta(), "gossip, ring": Gossip(), "gossip, exponential": Gossip(topology="exponential"),
        "AD-PSGD": ADPSGD(), "none": NoCommunication(),
    },
    "one x, no lock": {"Hogwild": Hogwild(), "Hogwild++": HogwildPP()},
}  # fmt: skip
EVERY: dict[str, Strategy] = {name: one for group in STRATEGIES.values() for name, one in group.items()}
ONLY = {REAL: ("inconsistent reads", "Hogwild", "Hogwild++"), VIRTUAL: ("4 servers",)}
ALIKE = ("4 servers", "1 backup worker", "ring", "overlapped ring", "sharded ring", "naive", "all-gather")
"""They take the steps of the synchronous server, or nearly, and so have its learning rate."""
CENTRAL = {"synchronous": "server", "asynchronous": "asynchronous"}
DECENTRAL = {"synchronous": "gossip, ring", "asynchronous": "AD-PSGD"}
LOCAL_STEPS, BOUNDS = "local steps H", "staleness bound s"
VALUES = {LOCAL_STEPS: (1, 2, 4, 8, 16, 32), BOUNDS: (0, 1, 2, 4, 8, 16)}
WORKERS, RANKS, GLOBAL_BATCH, BATCH = (16, 64), 4, 48, 16
GBIT = (1, 10)
RATES = (0.0002, 0.00078125, 0.003125, 0.0125, 0.05, 0.2, 0.8)
SEEDS, TUNING_SEED = (1, 2, 3), 0
COMPUTE, CODING, LATENCY, JITTER, SLOW = "10ms", "2ms", "50us", 0.2, 5
_CLIENTS = (1, 2, 4)  # of Hogwild, whose lost updates are counted


@dataclass(frozen=True)
class Case:
    """A run. `question`: grid, final, slow (the last worker is), axis (one of VALUES), lost (Hogwild's updates)."""

    question: str
    where: str
    name: str
    workers: int  # real: ranks
    lr: float
    gbit: int
    seed: int
    value: int = -1  # on the axis

    @property
    def strategy(self) -> Strategy:
        """Return the strategy."""
        if self.name == LOCAL_STEPS:
            return LocalSGD(local_steps=self.value)
        if self.name == BOUNDS:
            return AsyncParamServer(max_staleness=self.value, aggregate=self.workers if self.value == 0 else 1)
        return Hogwild(count_lost=True) if self.question == "lost" else EVERY[self.name]

    def options(self, common: dict[str, Any]) -> Options:
        """Return the run's options."""
        strategy = self.strategy
        momentum = 0.7 if isinstance(strategy, DGS) else 0.0  # which is not without
        same = {"strategy": strategy, "lr": self.lr, "momentum": momentum, "seed": self.seed, **common}
        if self.where == REAL:
            return Options(n_gpus=self.workers, global_batch_size=GLOBAL_BATCH, device="cpu", **same)
        n_gpus = self.workers + strategy.roles(2 * self.workers).count("server")
        slow = (f"{n_gpus - 1}:{SLOW}",) if self.question == "slow" else ()
        return Options(
            n_gpus=n_gpus, batch_size=BATCH, slow=slow, jitter=JITTER, bandwidth=f"{self.gbit}gbit", latency=LATENCY,
            **same,
        )  # fmt: skip


_CASE = [field.name for field in dataclasses.fields(Case)]


def common(quick: bool, data_dir: str) -> dict[str, Any]:
    """Return the options that all runs share."""
    shared: dict[str, Any] = {"data_dir": data_dir, "model": "mlp"}
    if quick:
        return {**shared, "dataset": "digits", "train_size": 1024, "epochs": 1}
    return {**shared, "dataset": "fashion_mnist", "train_size": 12_288, "epochs": 3}


def names(where: str) -> list[str]:
    """Return which strategies run there."""
    return [name for name in EVERY if name not in ONLY[VIRTUAL if where == REAL else REAL]]


def _sizes(where: str, quick: bool) -> tuple[int, ...]:
    return (RANKS,) if where == REAL else WORKERS[:1] if quick else WORKERS


def grid(where: str, quick: bool) -> list[Case]:
    """Return the runs that tell each strategy's learning rate."""
    rates = RATES[4:5] if quick else RATES
    return [
        Case("grid", where, name, workers, lr, GBIT[-1] if where == VIRTUAL else 0, TUNING_SEED)
        for name in names(where) if name not in ALIKE for workers in _sizes(where, quick) for lr in rates
    ]  # fmt: skip


def tuned(rows: pd.DataFrame) -> dict[tuple[str, str, int], float]:
    """Return by where, name and workers the rate with the best accuracy at the end, of equal ones the smaller."""
    last = last_epochs(rows[rows["question"] == "grid"])
    best = last.sort_values(["accuracy", "lr"], ascending=[False, True]).groupby(["where", "name", "workers"])["lr"]
    rates = {(str(where), str(name), int(n)): float(lr) for (where, name, n), lr in best.first().items()}
    return rates | {
        (where, name, n): lr for (where, like, n), lr in rates.items() if like == "server" for name in ALIKE
    }


def last_epochs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of every run."""
    return rows[rows["epoch"] == rows.groupby(_CASE, sort=False)["epoch"].transform("max")]


def finals(where: str, rates: dict[tuple[str, str, int], float], quick: bool) -> list[Case]:
    """Return the runs that are shown, with these learning rates."""
    seeds = SEEDS[:1] if quick else SEEDS
    networks = GBIT if where == VIRTUAL else (0,)
    cases = [
        Case("final", where, name, workers, rates[where, name, workers], gbit, seed)
        for name in names(where) for workers in _sizes(where, quick) for gbit in networks for seed in seeds
    ]  # fmt: skip
    if where == REAL:
        rate = rates[where, "Hogwild", RANKS]
        return cases + [Case("lost", where, "Hogwild", n, rate, 0, seed) for n in _CLIENTS for seed in seeds]
    few, fast = WORKERS[0], GBIT[-1]
    cases += [Case("slow", where, name, few, rates[where, name, few], fast, seed)
              for name in names(where) for seed in seeds]  # fmt: skip
    cases += [
        Case("axis", where, name, few, rates[where, _like(name, value), few], gbit, seed, value)
        for name, values in VALUES.items() for value in (values[:2] if quick else values) for gbit in networks
        for seed in seeds
    ]  # fmt: skip
    return cases


def _like(axis: str, value: int) -> str:
    """Return whose learning rate a run on one of the axes has. With the bound 0 a server is synchronous."""
    return "local SGD, every 5" if axis == LOCAL_STEPS else "asynchronous" if value else "server"


# The runs


def run_case(case: Case, shared: dict[str, Any]) -> pd.DataFrame:
    """Make one run; return a row for each epoch. That a loss becomes nan is a result: no accuracy."""
    facts = dataclasses.asdict(case)
    with tempfile.TemporaryDirectory() as results_dir:
        options = case.options(shared | {"results_dir": results_dir})
        try:
            table = run(options, quiet=True) if case.where == REAL else _simulate(options)
        except RunFailed as error:
            if "take a smaller --lr" not in str(error):
                raise
            return pd.DataFrame([facts | {"epoch": options.epochs}])
    return so_far(table, options).assign(**facts)


def _simulate(options: Options) -> pd.DataFrame:
    machines = ClusterOptions(compute=COMPUTE, coding=CODING)
    options, network, deaths, data = check(options, machines)
    return run(
        options, True, VirtualTime(network, Compute(options, phase_seconds(machines, options, data)), deaths).launcher()
    )


def so_far(table: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Return of the table of a run what there was at the end of each epoch, and what was measured in it.

    seconds: the slowest rank's, without evaluation. updates: of a server's x, or of the x that all share; else of one
    rank's x, on average. mb: what all ranks have sent. waited: the share of the time that workers waited.
    """
    of = table.astype(dict.fromkeys(("bytes_sent", "samples", *METERS), "float64")).groupby("epoch")
    workers = table[table["role"] == "worker"].groupby("epoch")
    servers = table[(table["role"] == "server") & (table["rank"] == 0)].set_index("epoch")["step"]
    if len(servers):
        updates = servers.astype(float)
    else:
        updates = workers["step"].sum() if isinstance(options.strategy, Hogwild) else workers["step"].mean()
    columns = {
        "accuracy": of["test_accuracy"].max(),
        "seconds": of["epoch_s"].max().cumsum(),
        "updates": updates,
        "mb": of["bytes_sent"].sum().cumsum() / 1e6,
        "staleness": of["staleness_mean"].max(),
        "waited": workers["wait_s"].sum() / workers["epoch_s"].sum(),
        **{meter: of[meter].mean() for meter in METERS},
    }
    return pd.DataFrame(columns).reset_index()


def record(path: AnyPath, data_dir: str = "data", quick: bool = False) -> None:
    """Make all runs; write them, and beside them what they share (JSON). Raises RunFailed, OSError."""
    path, shared = Path(path), common(quick, data_dir)

    def rows(jobs: Iterator[pd.DataFrame], n: int, what: str) -> pd.DataFrame:
        return pd.concat(tqdm(jobs, total=n, desc=what, unit="run", leave=False))

    def make(where: str, each: Callable[..., Iterator[pd.DataFrame]]) -> list[pd.DataFrame]:
        cases = grid(where, quick)
        first = rows(each(run_case, cases, [shared] * len(cases)), len(cases), f"{where}, learning rates")
        cases = finals(where, tuned(first), quick)
        return [first, rows(each(run_case, cases, [shared] * len(cases)), len(cases), where)]

    with cores() as pool:
        parts = make(VIRTUAL, pool.map)
    parts += make(REAL, map)
    about = {name: value for name, value in shared.items() if name != "data_dir"}
    about |= {"batch_size": BATCH, "global_batch_size": GLOBAL_BATCH, "compute": COMPUTE, "coding": CODING,
              "latency": LATENCY, "jitter": JITTER, "machine": machine(), "git_commit": git_commit()}  # fmt: skip
    table = pd.concat(parts, ignore_index=True)
    with write_together([path, path.with_suffix(".json")]) as (csv, facts):
        table[[*_CASE, *(name for name in table if name not in _CASE)]].to_csv(csv, index=False, float_format="%.6g")
        facts.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Whole:
    """What is known: rows of runs and epochs (the fields of Case, and what `so_far` has), and what the runs share."""

    rows: pd.DataFrame
    facts: dict[str, Any]

    def of(self, question: str, where: str = VIRTUAL) -> pd.DataFrame:
        """Return the rows of one question."""
        return self.rows[(self.rows["question"] == question) & (self.rows["where"] == where)]


def load(directory: str | Path | None = None) -> Whole:
    """Return the results in `directory`; by default those named by $EXPERIMENT_RESULTS, or those of the repository.

    Raises UsageError.
    """
    where = folder(directory)
    if not (where / WHOLE).exists():
        raise UsageError(f"no {WHOLE} in {where}: make it with python experiments/run.py whole_family")
    facts = json.loads((where / WHOLE).with_suffix(".json").read_text(encoding="utf-8"))
    return Whole(pd.read_csv(where / WHOLE, keep_default_na=False, na_values=[""]), facts)


def is_measured(directory: Path) -> bool:
    """Return whether the results are there, and not those of a quick trial."""
    facts = (directory / WHOLE).with_suffix(".json")
    return facts.exists() and json.loads(facts.read_text(encoding="utf-8"))["dataset"] != "digits"


def provenance(whole: Whole) -> str:
    """Return in one line what the runs are of."""
    facts = whole.facts
    return (
        f"{facts['dataset']}, {facts['train_size']} training samples, {facts['model']}, {facts['epochs']} epochs; "
        f"real: {RANKS} ranks, {facts['global_batch_size']} samples a step of all, {facts['machine']['cpu']}, "
        f"{facts['machine']['cores']} cores; virtual: {facts['batch_size']} samples a worker and step, which computes "
        f"{facts['compute']}, jitter {facts['jitter']}, latency {facts['latency']}; torch {facts['machine']['torch']}, "
        f"commit {str(facts['git_commit'])[:10]}"
    )
