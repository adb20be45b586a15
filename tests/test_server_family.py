"""The parameter servers that do not wait for all: what they have in common with the one that does, and their bounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from records.files import load_events, load_metadata
from training import Options, run
from workloads.errors import UsageError

SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:linear", "epochs": 3, "batch_size": 16, "lr": 0.05,
    "device": "cpu", "timeout": 30, "strategy": "param_server", "n_gpus": 4,
}  # fmt: skip
ASYNC = {"strategy": "async_param_server"}
N_TRAIN = 190


def made(tmp_path: Path, name: str, **changes: Any) -> dict[str, Any]:
    run(Options(**(SMALL | {"results_dir": str(tmp_path), "run_name": name} | changes)), quiet=True)
    return load_metadata(tmp_path / f"{name}.json")


def applied(tmp_path: Path, name: str) -> pd.DataFrame:
    """The gradients that the server has applied, in their order, with their staleness in versions."""
    events = load_events(tmp_path / name)
    updates = events[(events["version_read"] >= 0) & (events["phase"] == "update")].reset_index()
    return updates.assign(staleness=updates["version_applied"] - updates["version_read"])


def test_lock_step_with_all_gradients_aggregated_is_the_synchronous_server_bit_for_bit(tmp_path: Path) -> None:
    expected = made(tmp_path, "synchronous")["parameter_hash"]["0"]
    lock_step = made(tmp_path, "lock step", **ASYNC, max_staleness=0, aggregate=3)
    assert lock_step["parameter_hash"]["0"] == expected
    one = {"n_gpus": 2, "global_batch_size": 48}
    alone = made(tmp_path, "one worker", **ASYNC, **one)
    assert alone["parameter_hash"]["0"] == made(tmp_path, "one", **one)["parameter_hash"]["0"]


@pytest.mark.parametrize("changes", [{"strategy": "downpour"}, ASYNC | {"reads": "inconsistent"}])
def test_with_one_worker_the_others_are_the_synchronous_server_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    same = {"n_gpus": 2, "dtype": "float64", "momentum": 0.9, "lr_schedule": "cosine"}
    expected = made(tmp_path, "synchronous", **same)
    found = made(tmp_path, "run", **same, **changes)
    for column in ("train_loss", "test_loss"):
        np.testing.assert_allclose(
            pd.read_csv(tmp_path / "run.csv")[column], pd.read_csv(tmp_path / "synchronous.csv")[column], rtol=1e-10
        )
    assert found["test_accuracy"] == expected["test_accuracy"]


@pytest.mark.parametrize("s", [0, 1, 3])
def test_no_gradient_is_staler_than_the_bound(tmp_path: Path, s: int) -> None:
    workers = 3
    made(tmp_path, "run", **ASYNC, max_staleness=s, slow=("2:4",), jitter=1.0, epochs=6)
    updates = applied(tmp_path, "run")
    assert len(updates) > 6 * 10
    assert updates["version_applied"].tolist() == list(range(len(updates))), "one version an update"
    assert updates["staleness"].min() >= 0
    assert updates["staleness"].max() <= (2 * s + 1) * (workers - 1)


def test_an_epoch_ends_with_its_samples_whoever_gives_them(tmp_path: Path) -> None:
    made(tmp_path, "run", **ASYNC, slow=("2:30",))
    table = pd.read_csv(tmp_path / "run.csv")
    server = table[table["role"] == "server"]
    goals = pd.Series([N_TRAIN, 2 * N_TRAIN, 3 * N_TRAIN], index=server.index)
    assert server["samples"].cumsum().between(goals, goals + 16).all()
    assert server["step"].tolist() == applied(tmp_path, "run").groupby("epoch").size().cumsum().tolist()
    given = table.groupby("rank")["samples"].sum()
    assert given[2] < given[1]


def test_backup_workers_leave_the_slow_one_behind(tmp_path: Path) -> None:
    entry = made(tmp_path, "run", backup_workers=1, slow=("3:20",), epochs=4)
    assert entry["replicas_identical"] is True
    events = load_events(tmp_path / "run")
    pushed = events[(events["op"] == "send") & (events["tag"] == "push") & (events["bytes"] > 20)]
    updates = events[(events["rank"] == 0) & (events["phase"] == "update") & (events["version_read"] < 0)]
    assert len(updates) == 4 * 4  # 190 samples in batches of 48
    assert (pushed["rank"] == 3).sum() < (pushed["rank"] == 1).sum()
    received, dropped = len(pushed), (events["op"] == "drop").sum()
    assert received - dropped == 2 * len(updates), "two of three gradients close a step"


def test_inconsistent_reads_have_the_versions_at_their_start_and_end(tmp_path: Path) -> None:
    made(tmp_path, "run", **ASYNC, reads="inconsistent", model="mlp", epochs=10)
    events = load_events(tmp_path / "run")
    reads = events[events["op"] == "read"]
    assert (reads["version_applied"] >= reads["version_read"]).all()
    updates = applied(tmp_path, "run")
    assert (updates["staleness"] >= 0).all()
    for worker, own in reads.groupby("rank"):
        # Each but the first gradient of a worker counts from the start of the read before it.
        gradients = updates[updates["peer"] == worker]["version_read"].tolist()
        assert gradients[1:] == own["version_read"].tolist()[: len(gradients) - 1]


def test_downpour_sends_and_takes_as_often_as_it_is_told(tmp_path: Path) -> None:
    made(tmp_path, "run", strategy="downpour", n_push=3, n_pull=2, epochs=6)
    table = pd.read_csv(tmp_path / "run.csv")
    events = load_events(tmp_path / "run")
    for rank in (1, 2, 3):
        own = events[(events["rank"] == rank) & (events["epoch"] > 0)]
        steps = int(table[table["rank"] == rank]["step"].max())
        pushes = own[(own["op"] == "send") & (own["tag"] == "push") & (own["bytes"] > 20)]
        pulls = own[(own["op"] == "recv") & (own["tag"] == "parameters")]
        assert len(pushes) == steps // 3 + 6, "and what is left at the end of each of 6 epochs"
        assert steps // 2 - 6 <= len(pulls) - 6 <= steps // 2
    given = table[table["role"] == "worker"]["samples"].sum()
    assert table[table["role"] == "server"]["samples"].sum() == given, "no movement is lost"


@pytest.mark.parametrize(
    "changes",
    [
        ASYNC | {"slow": ("2:3",), "jitter": 0.5},
        ASYNC | {"max_staleness": 1, "aggregate": 2, "model": "tests.workload:batch_norm"},
        {"strategy": "downpour", "n_push": 3, "n_pull": 2, "model": "tests.workload:batch_norm"},
        {"backup_workers": 1},
    ],
)
def test_a_replay_has_the_same_parameters_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = changes | {"n_gpus": 5, "lr_schedule": "step"}
    entry = made(tmp_path, "run", **changes)
    assert len(entry["arrivals"].split()) > 20
    path = str(tmp_path / "run")
    again = made(tmp_path, "again", **changes | {"replay": path, "slow": ("1:4",), "jitter": 0.0})
    assert again["parameter_hash"] == entry["parameter_hash"]
    assert again["arrivals"] == entry["arrivals"]
    with pytest.raises(UsageError, match=r"--lr 0\.3: that run had 0\.05"):
        made(tmp_path, "third", **changes | {"replay": path, "lr": 0.3})


@pytest.mark.parametrize(
    ("made_with", "said"),
    [
        ({}, "was synchronous"),
        (ASYNC | {"reads": "inconsistent"}, "inconsistent reads"),
        (ASYNC | {"model": "tests.workload:mortal"}, "lost workers"),
        (None, "is not the record of a run"),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, made_with: dict[str, Any] | None, said: str) -> None:
    if made_with is not None:
        made(tmp_path, "run", **made_with)
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "again", **(made_with or {}) | {"replay": str(tmp_path / "run")})


@pytest.mark.parametrize("name", ["async_param_server", "downpour", "backup"])
def test_a_resumed_run_goes_on_from_the_server(tmp_path: Path, name: str) -> None:
    kind = {"backup_workers": 1} if name == "backup" else {"strategy": name}
    same = kind | {"model": "tests.workload:batch_norm", "optimizer": "adam", "lr": 0.01}
    made(tmp_path, "run", **same, checkpoint_every=7, checkpoint_keep=100)
    for path in sorted((tmp_path / "run.checkpoints").glob("step-*")):
        done = int(path.name.removeprefix("step-"))
        made(tmp_path, path.name, **same, resume=str(path))
        table = pd.read_csv(tmp_path / f"{path.name}.csv")
        server = table[table["role"] == "server"]
        assert server["epoch"].iloc[-1] == 3
        assert server["step"].iloc[0] > done - 1, "it counts on from there"
        assert server["test_accuracy"].iloc[-1] > 0.7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backup_workers": 3}, "--backup_workers 3: must be fewer than the workers"),
        ({"aggregate": 2}, "--aggregate 2: not an option of --strategy param_server"),
        (ASYNC | {"n_push": 2}, "--n_push 2: not an option of --strategy async_param_server"),
        ({"strategy": "ring_all_reduce", "max_staleness": 2}, "--max_staleness 2: not an option of"),
        ({"backup_workers": 1, "restarts": 1}, "--restarts 1: --strategy param_server cannot let workers in again"),
        (ASYNC | {"max_staleness": -1}, "--max_staleness -1: must be at least 0"),
        (ASYNC | {"reads": "dirty"}, "--reads dirty: unknown"),
    ],
)
def test_options_of_another_strategy_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "run", **changes)
