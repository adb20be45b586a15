"""Backup workers: whose gradients count, whose are dropped, and what the schedule goes by."""

from pathlib import Path

import pandas as pd
import pytest

from gradwire.checkpoints import files
from gradwire.checkpoints.folder import listed
from gradwire.core.records.tables import applied
from gradwire.core.transports.base import Transport
from gradwire.results import load_events
from gradwire.virtual_time.launcher import Death
from strategies.synchronous_server.backup_workers import BackupWorkers
from tests.ranks import virtual_time
from tests.runs import N_TRAIN
from tests.strategies.loops import Rank, Task
from tests.strategies.runs import made, server_rows


def test_a_step_closes_with_all_but_so_many_and_the_slow_one_is_left_behind(tmp_path: Path) -> None:
    entry = made(tmp_path, "run", BackupWorkers(n_backup=1), slow=("3:20",), epochs=4)
    assert entry["replicas_identical"] is True
    events = load_events(tmp_path / "run")
    sent = events[(events["op"] == "send") & (events["tag"] == "gradient")]
    updates = events[(events["rank"] == 0) & (events["phase"] == "update") & (events["version_read"] < 0)]
    assert len(updates) == 4 * 4  # 190 samples in batches of 48
    used = events[(events["phase"] == "update") & (events["version_read"] >= 0)]
    assert (used["version_read"] == used["version_applied"]).all(), "of the step that they close"
    assert (used.groupby("version_applied").size() == 2).all(), "two of three gradients close a step"
    assert len(sent) - len(used) == (events["op"] == "drop").sum() > 0
    table = pd.read_csv(tmp_path / "run.csv")
    assert entry["samples_unused"] == 4 * N_TRAIN - server_rows(tmp_path, "run")["samples"].sum() > 0
    assert entry["samples_unused_of_dead_workers"] == 0, "they came too late"
    assert table["dropped"].sum() == (events["op"] == "drop").sum()


def test_the_schedule_ends_with_the_training(tmp_path: Path) -> None:
    made(tmp_path, "run", BackupWorkers(), lr_schedule="cosine", epochs=4, checkpoint_every=16)
    (path,) = listed(tmp_path / "run.checkpoints")
    state = files.load_rank(path, 0)["strategy"]
    assert state["processed"] == pytest.approx(4 * N_TRAIN, abs=6)
    assert state["samples"] < 3 * N_TRAIN


def with_a_death(transport: Transport) -> list[list[int]]:
    """Worker 1 has sent its gradient when it dies; the others send theirs later. Return whose closes which step."""
    rank = Rank(transport, Task(BackupWorkers(n_backup=0), 4, "plain"))
    rank.strategy.updater.until = 3
    if transport.rank > 1:
        transport.sleep(1.0)
    rank.constant_epoch(1.0, 1)
    rows: list[list[int]] = applied(transport.recorder.frame())[["peer", "version_applied"]].to_numpy().tolist()
    return rows


def test_what_a_dead_worker_sent_does_not_close_the_step_of_those_who_live() -> None:
    roles = BackupWorkers().roles(4)
    time = virtual_time(4, [Death(1, 0.5)])
    found = time.launch(with_a_death, 4, expendable=[1, 2, 3], roles=roles, record=True)
    assert found[:2] == [[[1, 0], [2, 0], [3, 0]], None], "rank 3 is alive, and so its gradient is waited for"
