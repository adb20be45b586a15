"""Trains the digits by several strategies in virtual time, and puts them side by side: for labs 5 and 6."""

import tempfile
from collections.abc import Mapping

import pandas as pd

import simulate
from lessons.report import Report
from records import tables
from strategies import Strategy
from training import Options
from virtual_time.cluster import ClusterOptions


def compare(
    report: Report,
    strategies: Mapping[str, Strategy],
    n_gpus: int = 4,
    epochs: int = 3,
    lr: float = 0.1,
    bandwidth: str = "1gbit",
    latency: str = "50us",
    compute: str = "10ms",
) -> pd.DataFrame | str:
    """Return for each strategy the accuracy on the held-out digits, and the virtual seconds and MB of the training.

    Also the virtual milliseconds a step: the seconds by the steps that the records count, the ends of epochs included.

    Only if `report` says that the functions are right: a training by others could hang. A step of a worker computes
    for `compute`. Raises UsageError, RunFailed.
    """
    if not report.right:
        return "not trained: first have the check say that it is right"
    rows = {}
    for name, strategy in strategies.items():
        with tempfile.TemporaryDirectory() as folder:
            options = Options(strategy=strategy, n_gpus=n_gpus, epochs=epochs, lr=lr, momentum=0.0,
                              bandwidth=bandwidth, latency=latency, results_dir=folder)  # fmt: skip
            table = simulate.simulate(options, ClusterOptions(compute=compute), quiet=True).table
        totals = tables.totals(table)
        assert totals["test_accuracy"] is not None, "every epoch is evaluated"
        rows[name] = {
            "accuracy, %": round(100 * totals["test_accuracy"], 1),
            "virtual seconds": round(totals["seconds"] or 0.0, 3),
            "MB sent": round((totals["bytes_sent"] or 0) / 1e6, 2),
            "ms a step": round(1000 * (totals["seconds"] or 0.0) / int(table["step"].max()), 2),
        }
    return pd.DataFrame(rows).T
