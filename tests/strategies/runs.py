"""Whole runs, small ones: two classes of points that a line separates."""

from pathlib import Path
from typing import Any

import pandas as pd

from records.files import load_events, load_metadata
from strategies import Strategy
from tests.ranks import LIMIT
from tests.strategies.loops import fit
from training import Options, run

SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:linear", "epochs": 3, "batch_size": 16, "lr": 0.05,
    "device": "cpu", "timeout": LIMIT,
}  # fmt: skip
BATCH_NORM = {"model": "tests.workload:batch_norm"}
N_TRAIN = 190


def made(folder: Path, name: str, strategy: Strategy, **changes: Any) -> dict[str, Any]:
    """Run it, by default with 4 processes or as many as it can be; return what its record says."""
    given = {"n_gpus": fit(type(strategy), 4), "results_dir": str(folder), "run_name": name}
    run(Options(strategy=strategy, **(SMALL | given | changes)), quiet=True)
    return load_metadata(folder / f"{name}.json")


def applied(folder: Path, name: str) -> pd.DataFrame:
    """The gradients that the server has applied, in their order, with their staleness in versions."""
    events = load_events(folder / name)
    updates = events[(events["version_read"] >= 0) & (events["phase"] == "update")].reset_index()
    return updates.assign(staleness=updates["version_applied"] - updates["version_read"])


def server_rows(folder: Path, name: str) -> pd.DataFrame:
    """The server's rows of the table."""
    return pd.read_csv(folder / f"{name}.csv").query("role == 'server'")
