"""Experiments in virtual time: EXPERIMENT.csv has a row for each run and epoch, EXPERIMENT.json what the runs share."""

import math
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.grid import Experiment, Store, attempt, diverged, made_by
from gradwire import Options, run
from gradwire.core.records.atomic import AnyPath
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.events import METERS
from gradwire.core.records.machine import usable_cores
from gradwire.core.records.tables import SERVER, scores
from gradwire.core.records.tables import workers as trained
from gradwire.virtual_time import simulate
from gradwire.virtual_time.cluster import ClusterOptions, Compute
from gradwire.virtual_time.launcher import VirtualTime
from strategies import Strategy

VIRTUAL, REAL = "virtual", "real"
GRID = "grid"  # the question of the runs that find a learning rate
ACCURACY, BITS = "accuracy", "bits_per_character"  # the scores
_CODES = ("value_bytes", "index_bytes", "header_bytes")
_COMPUTING = ["data_s", "forward_s", "backward_s", "update_s"]
_SIZE = ("dataset", "train_size", "epochs", "model")
Rates = Mapping[tuple[str, str, int], float]  # by where, name and workers


@dataclass(frozen=True)
class Case:
    """A run: which question of the experiment it answers, what runs, and what varies."""

    question: str
    name: str  # of a strategy, a method or a codec
    workers: int  # of a real run: ranks
    lr: float  # 0: still to be set
    seed: int  # 0: of the grid
    gbit: float = 1  # Gbit/s of each network card; 0: a real run
    where: str = VIRTUAL
    slow: bool = False  # whether the last worker is
    racks: int = 1
    uplink: float = 0  # Gbit/s of each rack's; 0: of one rack, which has none
    density: float = 0.01
    value: int = -1  # of what an axis varies

    @property
    def run_name(self) -> str:
        """The run in words."""
        return f"{self.question} {self.where} {self.name} {self.workers} lr {self.lr:g} seed {self.seed}"


CASE = [field.name for field in fields(Case)]


def score_of(table: pd.DataFrame) -> str:
    """Return the column of what was scored: of bits the fewest are the best."""
    return BITS if BITS in table else ACCURACY


def by_score(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, the best first; of equal ones that of the smaller learning rate."""
    score = score_of(table)
    return table.sort_values([score, "lr"], ascending=[score == BITS, True])


class Rows(Store):
    """The rows of Cases, one for each run and epoch."""

    columns = {field.name: field.type for field in fields(Case)} | {"epoch": int}

    def __init__(self, folder: AnyPath, experiment: str) -> None:
        self.cases: set[Case] = set()
        super().__init__(folder, experiment)

    def load(self, table: pd.DataFrame) -> None:
        """Take over what was read. Raises KeyError if it is of no Cases."""
        super().load(table)
        self.cases = {Case(*values) for values in table[CASE].itertuples(index=False, name=None)}

    def has(self, run: Case) -> bool:
        """Return whether the run is there."""
        return run in self.cases

    def add(self, run: Case, result: pd.DataFrame) -> None:
        """Keep the rows of a run. Raises OSError."""
        self.cases.add(run)
        self.append(result)

    def of(self, *questions: str, last: bool = True, **chosen: Any) -> pd.DataFrame:
        """Return the rows of some questions with the `chosen` values (None: any); of each run the last, or all."""
        rows = self.table[self.table["question"].isin(questions)]
        for name, value in chosen.items():
            rows = rows if value is None else rows[rows[name] == value]
        return rows[rows["epoch"] == rows.groupby(CASE, sort=False)["epoch"].transform("max")] if last else rows

    def provenance(self) -> str:
        """Return in one line what the runs are of. `virtual`: where those in virtual time ran, if it was elsewhere."""
        facts = self.facts
        of_real = f" ({facts['global_batch_size']} of all in real runs)" if "global_batch_size" in facts else ""
        computes = f"computes {facts['compute']}" if "compute" in facts else "computes as timed on this machine"
        return (
            f"{facts['dataset']}, {facts['train_size']} training samples, {facts['model']}, {facts['epochs']} epochs, "
            f"{facts['batch_size']} samples a worker and step{of_real}, which {computes}, jitter {facts['jitter']}; "
            f"latency {facts['latency']}; {_made(facts)}"
            + (f"; runs in virtual time: {_made(facts[VIRTUAL])}" if VIRTUAL in facts else "")
        )


def _made(by: Mapping[str, Any]) -> str:
    here = by["machine"]
    return f"{here['cpu']}, {here['cores']} cores, torch {here['torch']}, commit {str(by['git_commit'])[:10]}"


class Simulated(Experiment):
    """An experiment of Cases, nearly all in virtual time. A loss that becomes nan is a result: no score.

    `quick`: on digits or little text, with one rate of the grid, one seed, and no more than 16 workers.
    """

    sizes: tuple[dict[str, Any], dict[str, Any]]  # the options that all runs share, and all quick runs
    rates: tuple[float, ...]  # of the grid
    constants: Mapping[str, Any] = {}  # written beside the rows
    cluster = ClusterOptions()

    @abstractmethod
    def options(self, case: Case, common: dict[str, Any]) -> Options:
        """Return the options of a run."""

    def machines(self, case: Case) -> ClusterOptions:
        """Return the cluster of a run in virtual time."""
        return self.cluster

    def timed(self, common: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of the phases that are timed on this machine before the first run."""
        return {}

    def phases(self, case: Case, timed: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the seconds of the phases of a step as they were timed; None: the machines say them."""
        return None

    def like(self, case: Case) -> tuple[str, str, int]:
        """Return the key of the runs of the grid whose learning rate a run takes: where, name and workers."""
        return case.where, case.name, case.workers

    def small(self, case: Case) -> Case | None:
        """Return the run, whose size is that of all, if it is made at all."""
        few = case.seed <= 1 and case.workers <= 16
        return case if few and (case.question != GRID or case.lr == self.rates[len(self.rates) // 2]) else None

    def open(self, folder: Path) -> Rows:
        """Return the kept rows. Raises UsageError if they are damaged or of another size."""
        kept, size = Rows(folder, self.name), self.sizes[self.quick]
        if kept.facts and any(kept.facts[name] != size[name] for name in _SIZE):
            raise UsageError(f"{kept.paths[0]}: has runs of another size; delete it, or name another --results_dir")
        kept.facts = kept.facts or {**size, **self.constants, **made_by()}
        return kept

    def tuned(self, kept: Rows) -> Rates:
        """Return the rates with the best score at the end, of equal ones the smaller."""
        best = by_score(kept.of(GRID))
        rates = best.groupby(["where", "name", "workers"])["lr"].first()
        return {(str(where), str(name), int(n)): float(lr) for (where, name, n), lr in rates.items()}

    def results(self, kept: Rows, runs: list[Case], common: dict[str, Any]) -> Iterator[tuple[Case, Any]]:
        """Yield each run with its rows, or the error: in virtual time one a core, then the real ones one by one."""
        common = {name: kept.facts[name] for name in _SIZE} | {"data_dir": common["data_dir"]}
        if runs and "phase_seconds" not in kept.facts and (timed := self.timed(common)):
            kept.facts["phase_seconds"] = timed
        make = partial(self.rows, common=common, timed=kept.facts.get("phase_seconds", {}))
        virtual, real = ([case for case in runs if (case.where == VIRTUAL) == of] for of in (True, False))
        if virtual:
            with ProcessPoolExecutor(len(usable_cores()), get_context("spawn"), _take_core) as pool:
                yield from zip(virtual, pool.map(attempt, [partial(make, case) for case in virtual]), strict=True)
        for case in real:
            yield case, attempt(partial(make, case))

    def rows(self, case: Case, common: dict[str, Any], timed: Mapping[str, Any]) -> pd.DataFrame:
        """Make one run; return a row for each epoch. Raises RunFailed, UsageError."""
        with tempfile.TemporaryDirectory() as results_dir:
            options = self.options(case, common | {"results_dir": results_dir})
            try:
                if case.where == REAL:
                    table, more = run(options, quiet=True), {}
                else:
                    done = _simulated(options, self.machines(case), self.phases(case, timed))
                    card, percent = (done.cards[0][0].name, done.cards[0][1]) if done.cards else ("none", 0.0)
                    table, more = done.table, {"busiest_card": card, "busy_percent": percent}
                    more["speedup"] = done.figures()["speedup"]
                workers = options.strategy.count_workers(options.n_gpus or 1)
                batch = options.global_batch_size or options.batch_size * workers
                rows = so_far(table, options.strategy, batch).assign(**more)
            except RunFailed as error:
                if not diverged(error):
                    raise
                rows = pd.DataFrame([{"epoch": options.epochs}])
        return rows.assign(**asdict(case))


def _simulated(options: Options, machines: ClusterOptions, phases: dict[str, float] | None) -> simulate.Simulation:
    if phases is None:
        return simulate.simulate(options, machines, quiet=True)
    options, network, deaths, _ = simulate.check(options, machines)
    time = VirtualTime(network, Compute(options, phases), deaths, **machines.machine())
    return simulate.Simulation(options, run(options, True, time.launcher()), time, math.inf)


def so_far(table: pd.DataFrame, strategy: Strategy, batch: int) -> pd.DataFrame:
    """Return of the table of a run, with steps of `batch` samples, what there was at the end of each epoch.

    seconds: the slowest rank's, without evaluation; a worker computed and coded in a part. steps: of all workers
    together. updates: of a server's x, or of the x that all share; else of one rank's x, on average. mb: what all ranks
    have sent, code_mb: of it codes. staleness, waited (share of the workers' time) and METERS: mean of the epoch.
    """
    table = table.astype(dict.fromkeys(("bytes_sent", "samples", *_CODES, *METERS), "float64"))
    of, workers = table.groupby("epoch"), trained(table).groupby("epoch")
    updates = table[(table["role"] == SERVER) & (table["rank"] == 0)].set_index("epoch")["step"].astype(float)
    if updates.empty:
        updates = workers["step"].sum() if strategy.name.startswith("hogwild") else workers["step"].mean()
    columns = {
        **{name.removeprefix("test_"): of[name].max() for name in scores(table)},
        "seconds": of["epoch_s"].max().cumsum(),
        "steps": workers["samples"].sum().cumsum() / batch,
        "updates": updates,
        "computed": workers[_COMPUTING].mean().sum(axis=1).cumsum(),
        "coded": workers["compress_s"].mean().fillna(0.0).cumsum(),
        "mb": of["bytes_sent"].sum().cumsum() / 1e6,
        "code_mb": of[list(_CODES)].sum().cumsum().sum(axis=1) / 1e6,
        "staleness": of["staleness_mean"].max(),
        "waited": workers["wait_s"].sum() / workers["epoch_s"].sum(),
        **{meter: of[meter].mean() for meter in METERS},
    }
    return pd.DataFrame(columns).reset_index()


def _take_core() -> None:
    """Keep this process to one core of its own, since a run in virtual time uses one."""
    if hasattr(os, "sched_setaffinity"):
        here = sorted(os.sched_getaffinity(0))
        number = int(current_process().name.rpartition("-")[2].rpartition(":")[2])  # the processes of a pool count
        os.sched_setaffinity(0, {here[number % len(here)]})
