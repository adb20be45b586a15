"""The parameter servers that do not wait for all: what they have in common with the one that does, and their bounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from records.errors import UsageError
from records.files import load_events, load_metadata
from training import Options, checkpoints, run

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
    assert applied(tmp_path, "run")["staleness"].max() == 0


@pytest.mark.parametrize("s", [0, 1, 3])
def test_no_gradient_is_staler_than_the_bound(tmp_path: Path, s: int) -> None:
    workers = 3
    made(tmp_path, "run", **ASYNC, max_staleness=s, slow=("2:4",), jitter=1.0, epochs=6)
    updates = applied(tmp_path, "run")
    assert len(updates) > 6 * 10
    assert updates["version_applied"].tolist() == list(range(len(updates))), "one version an update"
    assert updates["staleness"].min() >= 0
    assert updates["staleness"].max() <= (2 * s + 1) * (workers - 1)


@pytest.mark.parametrize("s", [0, 1, 2])
def test_no_worker_gets_x_further_ahead_of_the_slowest_than_the_bound(tmp_path: Path, s: int) -> None:
    made(tmp_path, "run", **ASYNC, max_staleness=s, slow=("2:4",), jitter=1.0, epochs=6)
    events = load_events(tmp_path / "run").query("rank == 0 and epoch > 0").sort_values("t0", kind="stable")
    clocks, furthest = dict.fromkeys((1, 2, 3), 0), 0
    for event in events.itertuples():
        if event.phase == "update" and event.version_read >= 0:
            clocks[event.peer] += 1
        elif event.op == "send" and event.tag == "parameters" and event.bytes > 20:  # x, not the end of an epoch
            furthest = max(furthest, clocks[event.peer] - min(clocks.values()))
    assert sum(clocks.values()) > 6 * 10
    assert furthest == s, "the bound is kept, and used"


def test_an_update_of_an_epochs_gradients_ends_each_epoch(tmp_path: Path) -> None:
    made(tmp_path, "run", **ASYNC, aggregate=12, epochs=6)
    server = pd.read_csv(tmp_path / "run.csv").query("role == 'server'")
    assert server["step"].diff().dropna().between(0, 2).all()
    assert server["samples"].sum() >= 6 * N_TRAIN


def test_the_schedule_of_backup_workers_ends_with_the_training(tmp_path: Path) -> None:
    made(tmp_path, "run", backup_workers=1, lr_schedule="cosine", epochs=4, checkpoint_every=16)
    (path,) = checkpoints.listed(tmp_path / "run.checkpoints")
    state = checkpoints.load_rank(path, 0)["strategy"]
    assert state["processed"] == pytest.approx(4 * N_TRAIN, abs=6)
    assert state["samples"] < 3 * N_TRAIN


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
    changes = changes | {"n_gpus": 5, "lr_schedule": "step", "checkpoint_every": 9}
    entry = made(tmp_path, "run", **changes)
    assert len(entry["arrivals"].split()) > 20
    path = str(tmp_path / "run")
    again = made(
        tmp_path, "again", **changes | {"checkpoint_every": 0, "replay": path, "slow": ("1:4",), "jitter": 0.0}
    )
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


@pytest.mark.parametrize(
    "kind", [ASYNC, ASYNC | {"reads": "inconsistent"}, {"strategy": "downpour"}, {"backup_workers": 1}]
)
def test_a_resumed_run_goes_on_from_the_server(tmp_path: Path, kind: dict[str, Any]) -> None:
    same = kind | {"model": "tests.workload:batch_norm", "optimizer": "adam", "lr": 0.01}
    made(tmp_path, "run", **same, checkpoint_every=4, checkpoint_keep=100)
    found = checkpoints.listed(tmp_path / "run.checkpoints")
    for path in (found[0], found[len(found) // 3], found[-1]):  # amid epochs, and at or near the end of all
        at = checkpoints.load_run(path)
        made(tmp_path, path.name, **same, resume=str(path))
        server = pd.read_csv(tmp_path / f"{path.name}.csv").query("role == 'server'")
        assert server["epoch"].tolist() == list(range(at["epoch"], 4)), "the epoch that it was made in is ended"
        assert server["step"].iloc[0] >= at["step"], "it counts on from there"
        assert server["test_accuracy"].iloc[-1] > 0.7
        if kind != {"backup_workers": 1}:
            staleness = applied(tmp_path, path.name)["staleness"]
            assert staleness.empty or 0 <= staleness.min() <= staleness.max() < at["step"] + 8
            assert staleness.empty or staleness.median() <= 4
    with pytest.raises(UsageError, match=r"--epochs 1: .* is of epoch 3"):
        made(tmp_path, "short", **same, resume=str(found[-1]), epochs=1)
    with pytest.raises(UsageError, match="--run_name run: has ended"):
        made(tmp_path, "run", **same, resume=str(found[-1]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backup_workers": 3}, "--backup_workers 3: must be fewer than the 3 workers"),
        ({"aggregate": 2}, "--aggregate 2: not an option of --strategy param_server"),
        (ASYNC | {"n_push": 2}, "--n_push 2: not an option of --strategy async_param_server"),
        ({"strategy": "ring_all_reduce", "max_staleness": 2}, "--max_staleness 2: not an option of"),
        ({"backup_workers": 1, "restarts": 1}, "--restarts 1: --strategy param_server lets no worker in again"),
        (ASYNC | {"aggregate": 13}, "--aggregate 13: an epoch has 12; take fewer"),
        ({"strategy": "downpour", "n_push": 5}, "--n_push 5: an epoch has 4; take fewer"),
        (ASYNC | {"replay": ""}, "--replay: is empty"),
        (ASYNC | {"optimizer_options": ("lr=3",)}, "--optimizer_options lr=3: must be NAME=VALUE"),
        (ASYNC | {"optimizer": "rprop", "weight_decay": 0.1}, "--weight_decay 0.1: rprop has none"),
        (ASYNC | {"max_staleness": -1}, "--max_staleness -1: must be at least 0"),
        (ASYNC | {"reads": "dirty"}, "--reads dirty: unknown"),
    ],
)
def test_options_of_another_strategy_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "run", **changes)
