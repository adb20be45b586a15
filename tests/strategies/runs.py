"""Whole runs, small ones: two classes of points that a line separates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gradwire import run
from gradwire.results import load_events
from gradwire.virtual_time.cluster import Compute
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import Strategy
from tests.runs import metadata, small
from tests.strategies.kinds import fit, is_virtual

BATCH_NORM: dict[str, Any] = {"model": "tests.workload:batch_norm"}
PHASES = {"data": 1e-4, "forward": 1e-3, "backward": 2e-3, "update": 5e-4, "encode": 1e-3, "decode": 1e-3}


def made(
    folder: Path, name: str, strategy: Strategy, real: bool = False, deaths: Sequence[Death] = (), **changes: Any
) -> dict[str, Any]:
    """Run it, by default with 4 ranks or as many as it can have; return what its record says.

    In virtual time, where a pass takes 3 ms and each rank dies at its time; in processes if `real`, or where the
    strategy needs them.
    """
    given = {"n_gpus": fit(type(strategy), 4), "run_name": name, "epochs": 3, "lr": 0.05}
    options = small(folder, strategy, **(given | changes))
    launcher = None
    if is_virtual(type(strategy)) and not real:
        network = OneSwitch(options.n_gpus or 1, 1e7, 1e-4)
        launcher = VirtualTime(network, Compute(options, PHASES), deaths).launcher()
    run(options, quiet=True, launcher=launcher)
    return metadata(folder, name)


def applied(folder: Path, name: str) -> pd.DataFrame:
    """The gradients that the server has applied, in their order, with their staleness in versions."""
    events = load_events(folder / name)
    updates = events[(events["version_read"] >= 0) & (events["phase"] == "update")].reset_index()
    return updates.assign(staleness=updates["version_applied"] - updates["version_read"])


def server_rows(folder: Path, name: str) -> pd.DataFrame:
    """The server's rows of the table."""
    return pd.read_csv(folder / f"{name}.csv").query("role == 'server'")
