"""The main job, end to end: on the command line, from a notebook."""

import os
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from gradwire import run
from gradwire.core.records import files, tables
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.tables import ledger
from gradwire.core.records.unfinished import run_lock
from gradwire.core.workloads import datasets
from gradwire.results import load_events, load_table
from tests.runs import N_TRAIN, SMALL_ARGUMENTS, made, metadata, said, small, strategy_of
from tests.strategies.runs import BATCH_NORM
from tests.strategies.runs import made as made_virtually


def test_run_returns_the_table_that_the_csv_holds(tmp_path: Path) -> None:
    table = run(small(tmp_path, "param_server", n_gpus=3), quiet=True)
    pd.testing.assert_frame_equal(table, load_table(tmp_path / "run.csv"))
    server, worker = table[table["rank"] == 0], table[table["rank"] == 1]
    assert set(server["role"]) == {"server"}
    assert server[["train_loss", "forward_s", "data_s"]].isna().all(axis=None)
    assert server["samples"].tolist() == [N_TRAIN, N_TRAIN]
    assert server[["dropped", "staleness_mean", "staleness_max"]].eq(0).all(axis=None)
    assert worker[["test_accuracy", "update_s", "compress_s"]].isna().all(axis=None)
    assert worker[["train_loss", "data_s", "forward_s", "backward_s", "communicate_s"]].notna().all(axis=None)
    workers = table[table["role"] == "worker"]
    assert workers.groupby("epoch")["samples"].sum().tolist() == [N_TRAIN, N_TRAIN]
    steps = 6  # 190 samples in batches of 32
    assert server["step"].tolist() == [steps, 2 * steps]
    # 6 parameters; and a goodbye and the buffers at the end of an epoch, both empty
    assert worker["messages_sent"].tolist() == [steps + 2, steps + 2]
    assert worker["bytes_sent"].tolist() == [steps * 6 * 4] * 2
    assert server["bytes_sent"].tolist() == [2 * steps * 6 * 4] * 2
    sent = ledger(load_events(tmp_path / "run"))
    assert set(zip(sent["src"], sent["dst"], strict=True)) == {(0, 1), (0, 2), (1, 0), (2, 0)}


@pytest.mark.parametrize("strategy", ["async_param_server", "ring_all_reduce"])
def test_batch_norm_statistics_are_averaged_before_they_are_saved(tmp_path: Path, strategy: str) -> None:
    made_virtually(tmp_path, "run", strategy_of(strategy), n_gpus=3, save=str(tmp_path / "model.pt"), **BATCH_NORM)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state["1.running_var"].ne(1).all()
    table = load_table(tmp_path / "run.csv")
    most = table[table["role"] == "worker"]["step"].max()  # of asynchronous workers another may be ahead in each epoch
    assert state["1.num_batches_tracked"] >= most
    assert strategy == "async_param_server" or state["1.num_batches_tracked"] == most
    assert metadata(tmp_path)["replicas_identical"] is True


def test_a_run_on_a_link_has_the_same_result_later(tmp_path: Path) -> None:
    plain = made(tmp_path, "ring_all_reduce", "plain", n_gpus=3, epochs=1)
    held = made(tmp_path, "ring_all_reduce", "held", n_gpus=3, epochs=1, bandwidth="100mbit", latency="2ms")
    assert set(held["parameter_hash"].values()) == set(plain["parameter_hash"].values())
    assert held["bytes_sent"] == plain["bytes_sent"]
    steps, one_after_the_other = 4, 4
    assert held["seconds"] > steps * one_after_the_other * 2e-3, "every message takes its latency"
    assert held["options"]["bandwidth"] == "100mbit"


def test_a_loss_that_is_not_finite_ends_the_run_with_its_place(tmp_path: Path) -> None:
    options = small(tmp_path, "ring_all_reduce", n_gpus=2, dataset="digits", model="mlp", epochs=1, lr=1e30)
    with pytest.raises(RunFailed, match=r"the loss became (nan|inf) in epoch 1, step [2-9]\d* of \d+; .*--lr"):
        run(options, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_parameters_that_the_last_step_ruined_end_the_run(tmp_path: Path) -> None:
    options = small(tmp_path, "single", dataset="digits", model="mlp", epochs=1, batch_size=5000, lr=1e30)
    with pytest.raises(RunFailed, match="held-out set is nan after epoch 1"):
        run(options, quiet=True)
    assert list(tmp_path.iterdir()) == []


# What an interrupt leaves, and what is said of it


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt(signal.SIGTERM)


def single(folder: Path, *more: str) -> tuple[int, str]:
    """Run one process on the command line; return the exit code and the last line."""
    code, text = said("--strategy", "single", *SMALL_ARGUMENTS, "--epochs", "1", "--results_dir", str(folder), *more)
    return code, text.splitlines()[-1]


@pytest.mark.parametrize(("amid", "code", "name"), [(True, 130, "SIGINT"), (False, 143, "SIGTERM")])
def test_an_interrupt_amid_the_renames_or_after_them_leaves_all_records_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: bool, code: int, name: str
) -> None:
    replace = os.replace

    def interrupted(old: Any, new: Any) -> None:
        replace(old, new)
        if str(new).endswith(".csv"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(*((os, "replace", interrupted) if amid else (tables, "summary", interrupt)))
    told = f"error: ended by {name}; the records are written: {tmp_path / 'run.json'}"
    assert single(tmp_path) == (code, told)
    assert sorted(os.listdir(tmp_path)) == ["run.csv", "run.events.csv.gz", "run.json"]


def test_an_interrupt_before_the_records_names_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "write_run", interrupt)
    code, said_last = single(tmp_path, "--checkpoint_every", "2")
    folder = tmp_path / "run.checkpoints"
    assert (code, said_last) == (143, f"error: ended by SIGTERM; no records were written; --resume {folder} continues")
    assert os.listdir(tmp_path) == [folder.name]


def test_a_name_that_is_taken_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = small(tmp_path, "single")
    monkeypatch.setattr(datasets, "load", interrupt)
    (tmp_path / "run.csv").write_text("older")
    with pytest.raises(UsageError, match=r"^--run_name run: .*run.csv exists already; give another --run_name, or"):
        run(options, quiet=True)
    assert (tmp_path / "run.csv").read_text() == "older"
    (tmp_path / "run.csv").unlink()
    with run_lock(tmp_path, "run"), pytest.raises(UsageError, match=r"^--run_name run: such a run is writing to"):
        run(options, quiet=True)
