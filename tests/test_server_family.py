"""The parameter servers that do not wait for all: what they have in common with the one that does, and their bounds."""

from pathlib import Path
from typing import Any

import pytest

from records.files import load_events, load_metadata
from training import Options, run
from workloads.errors import UsageError

SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:linear", "epochs": 3, "batch_size": 16, "lr": 0.05,
    "device": "cpu", "timeout": 30, "strategy": "param_server", "n_gpus": 4,
}  # fmt: skip


def made(tmp_path: Path, name: str, **changes: Any) -> dict[str, Any]:
    run(Options(**(SMALL | {"results_dir": str(tmp_path), "run_name": name} | changes)), quiet=True)
    return load_metadata(tmp_path / f"{name}.json")


def test_lock_step_with_all_gradients_aggregated_is_the_synchronous_server_bit_for_bit(tmp_path: Path) -> None:
    expected = made(tmp_path, "synchronous")["parameter_hash"]["0"]
    lock_step = made(tmp_path, "lock step", strategy="async_param_server", max_staleness=0, aggregate=3)
    assert lock_step["parameter_hash"]["0"] == expected
    one = {"n_gpus": 2, "global_batch_size": 48}
    alone = made(tmp_path, "one worker", strategy="async_param_server", **one)
    assert alone["parameter_hash"]["0"] == made(tmp_path, "one", **one)["parameter_hash"]["0"]


@pytest.mark.parametrize("s", [0, 1, 3])
def test_no_gradient_is_staler_than_the_bound(tmp_path: Path, s: int) -> None:
    workers = 3
    made(tmp_path, "run", strategy="async_param_server", max_staleness=s, slow=("2:4",), jitter=1.0, epochs=6)
    events = load_events(tmp_path / "run")
    applied = events[(events["version_read"] >= 0) & (events["phase"] == "update")]
    staleness = applied["version_applied"] - applied["version_read"]
    assert len(applied) > 6 * 10
    assert applied["version_applied"].tolist() == list(range(len(applied))), "one version an update"
    assert staleness.min() >= 0
    assert staleness.max() <= (2 * s + 1) * (workers - 1)


def test_backup_workers_leave_the_slow_one_behind(tmp_path: Path) -> None:
    entry = made(tmp_path, "run", backup_workers=1, slow=("3:20",), epochs=4)
    assert entry["replicas_identical"] is True
    events = load_events(tmp_path / "run")
    pushed = events[(events["op"] == "send") & (events["tag"] == "push") & (events["bytes"] > 20)]
    updates = events[(events["rank"] == 0) & (events["phase"] == "update")]
    gradients = updates["version_read"] >= 0
    assert (~gradients).sum() == 4 * 4, "190 samples in batches of 48"
    assert gradients.sum() == 4 * 4 * 2, "of the first two of three workers"
    assert (pushed["rank"] == 3).sum() < (pushed["rank"] == 1).sum()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backup_workers": 3}, "--backup_workers 3: must be fewer than the workers"),
        ({"aggregate": 2}, "--aggregate 2: not an option of --strategy param_server"),
        ({"strategy": "ring_all_reduce", "max_staleness": 2}, "--max_staleness 2: not an option of"),
    ],
)
def test_options_of_another_strategy_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "run", **changes)
