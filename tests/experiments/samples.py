"""Made-up results of runs, in the form in which real ones are kept."""

import copy
import random
from dataclasses import asdict
from typing import Any

import pandas as pd

from experiments.cases import FAMILY
from experiments.measured import EXPERIMENTS
from experiments.real import TIMELINE, Runs
from experiments.simulated import Case, Simulated
from gradwire import Options
from gradwire.core.records.tables import COLUMNS

SIMULATED = {name: experiment for name, experiment in EXPERIMENTS.items() if isinstance(experiment, Simulated)}
MACHINE = {
    "python": "3.11", "torch": "2.0", "platform": "Linux-1", "cpu": "Abacus", "cores": 2, "memory_gib": 1.0, "gpus": [],
}  # fmt: skip


def epochs_of(run: Options) -> pd.DataFrame:
    """Return an epoch table of a run, its numbers drawn from its name."""
    draw, rows = random.Random(run.run_name), []
    every = {"strategy": run.strategy.name, "n_gpus": run.n_gpus, "samples": 600, "wait_s": 0.1, "update_s": 0.2,
             "bytes_sent": 1000, "bytes_received": 1000, "messages_sent": 10, "communicate_s": 0.1}  # fmt: skip
    of_worker = {"forward_s": 0.2, "backward_s": 0.3, "data_s": 0.1}
    for epoch in range(1, run.epochs + 1):
        for rank, role in enumerate(run.strategy.roles(run.n_gpus or 1)):
            row = dict.fromkeys(COLUMNS) | every | {"rank": rank, "role": role, "epoch": epoch, "step": 10 * epoch}
            row |= {"epoch_s": 1 + draw.random()} | (of_worker | {"train_loss": 1 / epoch} if role == "worker" else {})
            rows.append(row | ({"test_loss": 1.0, "test_accuracy": 0.8 + 0.1 * draw.random()} if rank == 0 else {}))
    return pd.DataFrame(rows).astype(COLUMNS)


def metadata_of(run: Options, **changes: Any) -> dict[str, Any]:
    """Return what is kept of a run beside its table."""
    facts: dict[str, Any] = {
        "strategy": run.strategy.name, "n_gpus": run.n_gpus, "replicas_identical": True, "bytes": "counted",
        "options": run.recorded() | {"device": "cpu"}, "git_commit": "0123456789abcdef",
    }  # fmt: skip
    return copy.deepcopy(facts | changes)


def keep(store: Runs, run: Options, **changes: Any) -> None:
    """Keep a made-up run in a store, its events too if it is drawn."""
    stale = [(worker, staleness, 10 * (3 - staleness)) for worker in (1, 2, 3) for staleness in range(3)]
    asynchronous = {"staleness": stale} if run.strategy.traits.asynchronous and store.paths[0].stem == FAMILY else {}
    store.facts.setdefault("machine", MACHINE)
    store.add(run, (epochs_of(run), metadata_of(run, **asynchronous, **changes)))
    if str(run.run_name).startswith(TIMELINE):
        store.events_of(str(run.run_name)).touch()


def rows_of(case: Case, epochs: int, accuracy: float | None = 0.8) -> pd.DataFrame:
    """Return the rows of a run in virtual time."""
    return pd.DataFrame([asdict(case) | {"epoch": epoch, "accuracy": accuracy} for epoch in range(1, epochs + 1)])
