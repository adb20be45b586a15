"""The main job, end to end: on the command line, from a notebook."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from records.errors import RunFailed
from records.files import load_events, load_table
from records.tables import ledger
from strategies import STRATEGIES
from training import Options, run
from training.options import option_names
from workloads import datasets, models

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:linear", "epochs": 2, "batch_size": 16,
    "device": "cpu", "timeout": 30, "run_name": "run",
}  # fmt: skip
HEADER = (
    "strategy,n_gpus,rank,role,epoch,step,samples,train_loss,test_loss,test_accuracy,epoch_s,data_s,forward_s,"
    "backward_s,compress_s,communicate_s,wait_s,update_s,bytes_sent,bytes_received,messages_sent,"
    "dropped,staleness_mean,staleness_max"
)


def command(*arguments: str, module: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, *module, "train.py", *arguments]
    return subprocess.run(python, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def small(tmp_path: Path, **changes: Any) -> Options:
    return Options(**(SMALL | {"results_dir": str(tmp_path)} | changes))


def metadata(tmp_path: Path, name: str = "run") -> dict[str, Any]:
    return json.loads((tmp_path / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("strategy", "n_gpus"), [("param_server", 4), ("ring_all_reduce", 4), ("naive_all_reduce", 2), ("single", 1)]
)
def test_trains_digits_to_95_percent(tmp_path: Path, strategy: str, n_gpus: int) -> None:
    done = command(
        "--strategy", strategy, "--n_gpus", str(n_gpus), "--device", "cpu", "--results_dir", str(tmp_path),
        "--run_name", "digits", "--save", str(tmp_path / "model.pt"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{n_gpus} CPU process" in done.stderr
    assert len(re.findall(rf"{strategy}: +0%.* 0/", done.stderr)) == 1, "one progress bar, not one per rank"
    for word in ("test accuracy", "seconds", "samples/s", "MB sent", "data", "forward", "backward", "wait", "update"):
        assert word in done.stdout

    table = load_table(tmp_path / "digits.csv")
    assert ",".join(table.columns) == HEADER
    assert len(table) == 10 * n_gpus
    facts = metadata(tmp_path, "digits")
    assert facts["replicas_identical"] is True
    assert len(facts["parameter_hash"]) == n_gpus
    assert facts["test_accuracy"] >= 0.95
    assert facts["options"]["strategy"] == strategy
    assert facts["samples_per_s"] > 0

    data = datasets.load("digits", "data")
    model = models.build("mlp", data.input_shape, data.n_classes)
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    x, y = data.fetch(torch.arange(data.n_test), "test")
    assert (model(x).argmax(1) == y).float().mean().item() == pytest.approx(facts["test_accuracy"])


def test_run_returns_the_table_that_the_csv_holds(tmp_path: Path) -> None:
    table = run(small(tmp_path, strategy="param_server", n_gpus=3), quiet=True)
    pd.testing.assert_frame_equal(table, load_table(tmp_path / "run.csv"))
    server, worker = table[table["rank"] == 0], table[table["rank"] == 1]
    assert set(server["role"]) == {"server"}
    assert server[["samples", "train_loss", "forward_s", "data_s"]].isna().all(axis=None)
    assert worker[["test_accuracy", "update_s", "compress_s"]].isna().all(axis=None)
    assert worker[["train_loss", "data_s", "forward_s", "backward_s", "communicate_s"]].notna().all(axis=None)
    workers = table[table["role"] == "worker"]
    assert workers.groupby("epoch")["samples"].sum().tolist() == [190, 190]
    steps = 6  # 190 samples in batches of 32
    assert server["step"].tolist() == [steps, 2 * steps]
    # 6 parameters; up with the number of samples; and one goodbye an epoch, an object of a few bytes
    assert worker["messages_sent"].tolist() == [steps + 1, steps + 1]
    assert ((worker["bytes_sent"] - steps * 7 * 4) < 20).all()
    assert server["bytes_sent"].tolist() == [2 * steps * 6 * 4] * 2
    sent = ledger(load_events(tmp_path / "run"))
    assert set(zip(sent["src"], sent["dst"], strict=True)) == {(0, 1), (0, 2), (1, 0), (2, 0)}


@pytest.mark.parametrize("strategy", [name for name, kind in STRATEGIES.items() if not kind.own_pace])
def test_the_same_run_twice_is_bit_identical(tmp_path: Path, strategy: str) -> None:
    n_gpus = 1 if strategy == "single" else 3
    hashes = []
    for name in ("first", "second"):
        run(small(tmp_path, strategy=strategy, n_gpus=n_gpus, run_name=name), quiet=True)
        hashes.append(metadata(tmp_path, name)["parameter_hash"])
    assert hashes[0] == hashes[1]
    run(small(tmp_path, strategy=strategy, n_gpus=n_gpus, run_name="other seed", seed=1), quiet=True)
    assert metadata(tmp_path, "other seed")["parameter_hash"] != hashes[0]


def saved(tmp_path: Path, **changes: Any) -> dict[str, torch.Tensor]:
    run(small(tmp_path, save=str(tmp_path / "model.pt"), dtype="float64", **changes), quiet=True)
    return torch.load(tmp_path / "model.pt", weights_only=True)


def test_workers_like_and_accumulate_leave_the_result_alone(tmp_path: Path) -> None:
    expected = saved(tmp_path, strategy="ring_all_reduce", n_gpus=3)
    for changes in (
        {"strategy": "single", "workers_like": 3},
        {"strategy": "single", "workers_like": 3, "accumulate": 5},
        {"strategy": "param_server", "n_gpus": 4, "accumulate": 2},
        {"strategy": "param_server", "n_gpus": 3, "global_batch_size": 48},
    ):
        torch.testing.assert_close(saved(tmp_path, **changes), expected, rtol=1e-9, atol=1e-12)
    other = saved(tmp_path, strategy="single")
    assert not torch.allclose(other["weight"], expected["weight"])


@pytest.mark.parametrize("strategy", ["param_server", "ring_all_reduce"])
def test_batch_norm_statistics_are_averaged_before_they_are_saved(tmp_path: Path, strategy: str) -> None:
    run(small(tmp_path, strategy=strategy, n_gpus=3, model="tests.workload:batch_norm",
              save=str(tmp_path / "model.pt")), quiet=True)  # fmt: skip
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state["1.running_var"].ne(1).all()
    assert metadata(tmp_path)["replicas_identical"] is True


def test_events_tell_every_phase_and_message(tmp_path: Path) -> None:
    run(small(tmp_path, strategy="ring_all_reduce", n_gpus=3), quiet=True)
    events = load_events(tmp_path / "run")
    steps = events[(events["epoch"] == 1) & (events["rank"] == 1)]
    assert {"data", "forward", "backward", "communicate", "update"} <= set(steps["phase"])
    assert (events["t1"] >= events["t0"]).all()
    sends, receipts = (events[(events["op"] == op) & (events["epoch"] > 0)] for op in ("send", "recv"))
    assert len(sends) == len(receipts) == 3 * 2 * 4 * 2 * 2  # ranks, epochs, steps, passes, N - 1
    assert sends["bytes"].sum() == receipts["bytes"].sum()
    assert set(sends["tag"]) == {"share-reduce", "share-only"}


def test_help_explains_every_option() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name in option_names():
        assert f"--{name}" in done.stdout
    assert "--n-gpus" not in done.stdout
    assert "Learning rate." in done.stdout


def test_parameters_that_the_last_step_ruined_end_the_run(tmp_path: Path) -> None:
    options = small(tmp_path, strategy="single", dataset="digits", model="mlp", epochs=1, batch_size=5000, lr=1e30)
    with pytest.raises(RunFailed, match="held-out set is nan after epoch 1"):
        run(options, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_finite_ends_the_run_with_its_place(tmp_path: Path) -> None:
    done = command(
        "--strategy", "ring_all_reduce", "--n_gpus", "2", "--lr", "1e30", "--results_dir", str(tmp_path), "--device",
        "cpu",
    )  # fmt: skip
    assert done.returncode == 1
    assert "in epoch 1, step" in done.stderr
    assert "--lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
