"""Trains the digits by several strategies in virtual time, and puts them side by side: for labs 5 and 6."""

import tempfile
from collections.abc import Mapping

import pandas as pd

import simulate
from records import tables
from strategies import Strategy
from training import Options
from training.cluster import ClusterOptions


def compare(strategies: Mapping[str, Strategy], n_gpus: int, epochs: int = 2, bandwidth: str = "1gbit",
            latency: str = "50us", compute: str = "10ms", lr: float | None = None) -> pd.DataFrame:  # fmt: skip
    """Return a row for each strategy: the accuracy on the held-out digits, the virtual seconds, what was sent.

    A step computes for `compute`. Raises UsageError, RunFailed.
    """
    rows = []
    for name, strategy in strategies.items():
        with tempfile.TemporaryDirectory() as folder:
            options = Options(strategy=strategy, n_gpus=n_gpus, epochs=epochs, bandwidth=bandwidth, latency=latency,
                              results_dir=folder, **({} if lr is None else {"lr": lr}))  # fmt: skip
            done = simulate.simulate(options, ClusterOptions(compute=compute), quiet=True)
        totals = tables.totals(done.table)
        rows.append({"": name, "test accuracy, %": round(100 * totals["test_accuracy"], 1),
                     "virtual seconds": round(totals["seconds"], 3)})  # fmt: skip
    return pd.DataFrame(rows).set_index("")
