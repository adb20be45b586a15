"""Made-up results of all declared runs, in the form in which real ones are kept."""

import copy
import random
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import family_runs
from experiments.family_runs import FAMILY, LOST_UPDATES
from experiments.runs import EXPERIMENTS, declared
from experiments.store import DIVERGED, Store
from records.tables import COLUMNS
from training import Options

MACHINE = {
    "python": "3.11", "torch": "2.0", "platform": "Linux-1", "cpu": "Abacus", "cores": 2, "memory_gib": 1.0, "gpus": [],
}  # fmt: skip


def epochs_of(one: Options) -> pd.DataFrame:
    """Return an epoch table of a run, its numbers drawn from its name."""
    draw = random.Random(one.run_name)
    rows = []
    roles = one.strategy.roles(one.n_gpus or 1)
    for epoch in range(1, one.epochs + 1):
        for rank, role in enumerate(roles):
            worker = role == "worker"
            row: dict[str, Any] = dict.fromkeys(COLUMNS)
            row |= {"strategy": one.strategy.name, "n_gpus": one.n_gpus, "rank": rank, "role": role, "epoch": epoch}
            row |= {"step": 10 * epoch, "samples": 600, "epoch_s": 1 + draw.random(), "wait_s": 0.1, "update_s": 0.2}
            row |= {"bytes_sent": 1000, "bytes_received": 1000, "messages_sent": 10, "communicate_s": 0.1}
            row |= {"train_loss": 1 / epoch, "forward_s": 0.2, "backward_s": 0.3, "data_s": 0.1} if worker else {}
            row |= {"test_loss": 1.0, "test_accuracy": 0.8 + 0.1 * draw.random()} if rank == 0 else {}
            rows.append(row)
    return pd.DataFrame(rows).astype(COLUMNS)


def metadata_of(one: Options, **changes: Any) -> dict[str, Any]:
    """Return what is kept of a run beside its table."""
    roles = one.strategy.roles(one.n_gpus or 1)
    facts: dict[str, Any] = {
        "strategy": one.strategy.name,
        "n_gpus": one.n_gpus,
        "roles": roles,
        "replicas_identical": True,
    }
    facts |= {"test_accuracy": 0.85, "options": one.recorded() | {"device": "cpu"}, "bytes": "counted"}
    return copy.deepcopy(facts | {"machine": MACHINE, "git_commit": "0123456789abcdef"} | changes)


def staleness_of(one: Options) -> pd.DataFrame:
    """Return how stale the gradients of three workers were."""
    rows = [(worker, staleness, 10 * (3 - staleness)) for worker in (1, 2, 3) for staleness in range(3)]
    return pd.DataFrame(rows, columns=["worker", "staleness", "count"])


def keep(store: Store, one: Options, **changes: Any) -> None:
    """Keep a made-up run in a store."""
    stale = staleness_of(one) if one.strategy.traits.asynchronous and store.experiment == FAMILY else None
    store.add(str(one.run_name), epochs_of(one), metadata_of(one, **changes), stale)


def diverge(store: Store, one: Options) -> None:
    """Keep a run whose loss became nan."""
    store.add(str(one.run_name), pd.DataFrame(), metadata_of(one) | {DIVERGED: "the loss became nan"})


class _AtTheEnd(Store):
    """Writes when it is told to, not after each run."""

    def _write(self) -> None:
        pass

    def finish(self) -> None:
        super()._write()


def everything(folder: Path) -> Path:
    """Write results of all experiments, complete but for the events of the timelines."""
    for experiment in EXPERIMENTS:
        store = _AtTheEnd.load(folder, experiment)
        for one in declared(experiment):
            keep(store, one)
        store.finish()  # type: ignore[attr-defined]
    store = _AtTheEnd.load(folder, FAMILY)
    for one in [*family_runs.tuning(), family_runs.timeline()]:
        if one.lr == family_runs.GRID[-1] and one.strategy.name == "downpour":
            keep(store, one, test_accuracy=0.1)  # the same answer for all pictures
        elif one.lr == family_runs.GRID[-1] and one.strategy.traits.asynchronous:
            diverge(store, one)
        else:
            keep(store, one)
    for one in family_runs.finals(family_runs.tuned(family_runs.grid(store))):
        keep(store, one)
    store.finish()  # type: ignore[attr-defined]
    lost = [(mode, n, 0, 100 * n, 100 if mode == "write" else 100 * n) for mode in ("write", "push") for n in (1, 2, 4)]
    pd.DataFrame(lost, columns=["mode", "clients", "repeat", "made", "kept"]).to_csv(folder / LOST_UPDATES, index=False)
    (folder / f"{family_runs.timeline().run_name}.events.csv.gz").write_bytes(b"")
    return folder
