"""Train the digits by several strategies, in virtual time, and keep what each epoch gave, for the pictures of a lab."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

import simulate
from strategies import Strategy
from training import Options
from virtual_time.cluster import ClusterOptions


def train_each(runs: Mapping[str, Strategy], n_gpus: int = 4, epochs: int = 8, **options: Any) -> pd.DataFrame:
    """Train by each strategy; return a row for each run and epoch, `options` being those of `training.Options`.

    Columns: run, epoch, the mean loss of training, accuracy (% of the held-out digits), virtual seconds and MB sent by
    all ranks, both since the start, and state_KB, the optimizer's state on the rank that keeps the most. At 100 Mbit/s.
    Raises UsageError, RunFailed.
    """
    frames = []
    for name, strategy in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            given = Options(strategy=strategy, n_gpus=n_gpus, epochs=epochs, results_dir=folder,
                            bandwidth="100mbit", latency="50us", **options)  # fmt: skip
            table = simulate.simulate(given, ClusterOptions(compute="10ms"), quiet=True).table
            (record,) = Path(folder).glob("*.json")
            state = json.loads(record.read_text(encoding="utf-8"))["optimizer_bytes"]
        by_epoch = table.groupby("epoch")
        frame = pd.DataFrame({
            "loss": by_epoch["train_loss"].mean(),
            "accuracy": 100 * by_epoch["test_accuracy"].max(),
            "seconds": by_epoch["epoch_s"].max().cumsum(),
            "MB": by_epoch["bytes_sent"].sum().cumsum() / 1e6,
        })  # fmt: skip
        frame["state_KB"] = max(state.values()) / 1e3
        frames.append(frame.reset_index().assign(run=name))
    return pd.concat(frames, ignore_index=True)
