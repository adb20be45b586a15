"""Train networks on the digits by a student's functions, in virtual time. Raises UsageError, RunFailed.

Nothing is trained, here and in `rates` and `drift`, by functions that a report does not say to be right: they could
hang.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gradwire import Options, run
from gradwire.core.records import tables
from gradwire.core.records.errors import RunFailed
from gradwire.names import make_strategy
from gradwire.virtual_time import simulate
from gradwire.virtual_time.cluster import ClusterOptions
from lessons.report import Report
from strategies import Strategy

EPOCHS = 5
NOT_TRAINED = "not trained: first have the check say that it is right"


def train_digits(strategy: Strategy, compute: str = "10ms", **options: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the table and the record of a training; a step of a worker computes for `compute`.

    `options` are those of `training.Options`, at 1 Gbit/s and 50 us if they do not say otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        of_links = {"bandwidth": "1gbit", "latency": "50us"}
        given = Options(strategy=strategy, results_dir=folder, **of_links | options)
        try:
            table = simulate.simulate(given, ClusterOptions(compute=compute), quiet=True).table
        except RunFailed as error:
            raise RunFailed(f"right in the check, but not in training: {str(error).splitlines()[0]}") from error
        (record,) = Path(folder).glob("*.json")
        return table, json.loads(record.read_text(encoding="utf-8"))


def accuracy_of(table: pd.DataFrame) -> float:
    """Return the held-out accuracy on the digits at the end."""
    accuracy = tables.totals(table)["test_accuracy"]
    assert accuracy is not None, "every epoch is evaluated"
    return accuracy


def train(report: Report, strategy: Strategy, n_gpus: int = 4, **changes: Any) -> str:
    """Return in two lines the held-out accuracy on the digits, of `strategy` on `n_gpus` ranks and of one process.

    `changes` are options of both runs.
    """
    if not report.right:
        return NOT_TRAINED
    single = make_strategy("single", workers_like=strategy.count_workers(n_gpus))
    with tempfile.TemporaryDirectory() as folder:
        given = Options(strategy=single, n_gpus=1, epochs=EPOCHS, device="cpu", results_dir=folder, **changes)
        alone = run(given, quiet=True)
    yours, _ = train_digits(strategy, n_gpus=n_gpus, epochs=EPOCHS, **changes)
    tables_by_name = {f"{n_gpus} ranks, by yours": yours, "one process": alone}
    return "\n".join(f"{name:<18}  {100 * accuracy_of(table):.1f} % of the held-out digits after {EPOCHS} epochs"
                     for name, table in tables_by_name.items())  # fmt: skip


def compare(
    report: Report, strategies: Mapping[str, Strategy], epochs: int = 3, lr: float = 0.1, **options: Any
) -> pd.DataFrame | str:
    """Return for each strategy the accuracy on the held-out digits, and the virtual seconds and MB of the training.

    Also the virtual milliseconds a step: the seconds by the steps that the records count, the ends of epochs included.
    `options`: see `train_digits`.
    """
    if not report.right:
        return NOT_TRAINED
    runs = train_each(strategies, epochs=epochs, lr=lr, momentum=0.0, **{"bandwidth": "1gbit"} | options)
    last = runs.groupby("run", sort=False).last().rename_axis(None)
    shown = {"accuracy, %": last["accuracy"].round(1), "virtual seconds": last["seconds"].round(3),
             "MB sent": last["MB"].round(2), "ms a step": (1000 * last["seconds"] / last["step"]).round(2)}  # fmt: skip
    return pd.DataFrame(shown)


def train_each(
    runs: Mapping[str, Strategy], n_gpus: int = 4, epochs: int = 8, bandwidth: str = "100mbit", **options: Any
) -> pd.DataFrame:
    """Train by each strategy; return a row for each run and epoch, for pictures. `options`: see `train_digits`.

    Columns: run, epoch, the steps since the start, the mean loss of training, accuracy (% of the held-out digits),
    virtual seconds and MB sent by all ranks, both since the start, and state_KB, the optimizer's state on the rank that
    keeps the most.
    """
    frames = []
    for name, strategy in runs.items():
        table, record = train_digits(strategy, n_gpus=n_gpus, epochs=epochs, bandwidth=bandwidth, **options)
        by_epoch = table.groupby("epoch")
        frame = pd.DataFrame({
            "step": by_epoch["step"].max(),
            "loss": by_epoch["train_loss"].mean(),
            "accuracy": 100 * by_epoch["test_accuracy"].max(),
            "seconds": by_epoch["epoch_s"].max().cumsum(),
            "MB": by_epoch["bytes_sent"].sum().cumsum() / 1e6,
            "state_KB": max(record["optimizer_bytes"].values()) / 1e3,
        })  # fmt: skip
        frames.append(frame.reset_index().assign(run=name))
    return pd.concat(frames, ignore_index=True)
