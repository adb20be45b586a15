"""Servers that go on without a worker, and let it in again."""

import contextlib
import random
import re
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from records.errors import RunFailed
from records.files import load_events
from tests.launchers.test_failures import Victim, victims
from tests.test_server_family import ASYNC, N_TRAIN, made

__all__ = ["victims"]
MORTAL = {"model": "tests.workload:mortal", "epochs": 8}


@pytest.mark.parametrize("changes", [ASYNC, ASYNC | {"max_staleness": 1}, {"strategy": "downpour"}])
def test_the_others_give_the_samples_of_a_dead_worker(tmp_path: Path, changes: dict[str, Any]) -> None:
    entry = made(tmp_path, "run", **MORTAL, **changes)
    assert [(death["rank"], death["returned"]) for death in entry["deaths"]] == [(2, False)]
    table = pd.read_csv(tmp_path / "run.csv")
    assert set(table["rank"]) == {0, 1, 3}
    server = table[table["role"] == "server"]
    assert N_TRAIN * 8 <= server["samples"].sum() <= N_TRAIN * 8 + 3 * 16
    assert table["test_accuracy"].iloc[-3] > 0.7


def test_a_dead_worker_takes_its_part_of_the_batches_with_it_where_they_are_fixed(tmp_path: Path) -> None:
    entry = made(tmp_path, "run", **MORTAL, backup_workers=1)
    assert [death["rank"] for death in entry["deaths"]] == [2]
    server = pd.read_csv(tmp_path / "run.csv").query("role == 'server'")
    assert server["step"].iloc[-1] == 8 * 4, "every step is taken"
    lost = 8 * N_TRAIN - server["samples"].sum()
    assert entry["samples_lost"] == lost > 0


@pytest.mark.parametrize("changes", [ASYNC, ASYNC | {"reads": "inconsistent"}, {"strategy": "downpour"}])
def test_a_worker_that_is_started_again_joins_the_running_server(tmp_path: Path, changes: dict[str, Any]) -> None:
    # Slow enough that the run is not over before the new process is there.
    slow = {"slow": ("1:100", "3:100"), "epochs": 12}
    entry = made(tmp_path, "run", **MORTAL | slow, restarts=1, **changes)
    assert [(death["rank"], death["returned"]) for death in entry["deaths"]] == [(2, True), (2, False)]
    updates = load_events(tmp_path / "run").query("phase == 'update' and version_read >= 0")
    assert (updates["peer"] == 2).sum() == 2 * 3, "each life ends in its fourth step"


def test_synchronous_strategies_end_with_the_dead_worker(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"rank 2 \(worker\) was killed by SIGKILL"):
        made(tmp_path, "run", **MORTAL)


def test_without_any_worker_the_run_ends_and_says_so(tmp_path: Path, victims: list[Victim]) -> None:
    victims.append(victim := Victim(tmp_path, "async_param_server", "--lr", "0.001"))
    for rank in victim.wait_until("training")[1:]:
        rank.kill()
    said = victim.check_end()
    assert re.search(r"error: rank [12] \(worker\) was killed by SIGKILL", said), said


@pytest.mark.timeout(300)
def test_twenty_kills_in_a_row_do_not_stop_the_server(tmp_path: Path, victims: list[Victim]) -> None:
    options = ("--restarts", "20", "--lr", "0.001", "--model", "tests.workload:batch_norm")
    victims.append(victim := Victim(tmp_path, "async_param_server", *options, "--dataset", "tests.workload:moons"))
    server = victim.wait_until("training")[0]
    chance = random.Random(0)
    kills = 0
    while kills < 20:
        time.sleep(chance.uniform(0, 0.7))
        assert victim.process.poll() is None, victim.said()
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # a rank may have just died, or not be there yet
            chance.choice([rank for rank in victim.ranks() if rank.pid != server.pid]).kill()
            kills += 1
    steps = progress(victim)
    deadline = time.monotonic() + 30
    while progress(victim) <= steps and time.monotonic() < deadline:
        time.sleep(0.1)
    assert progress(victim) > steps, "the server goes on"
    victim.process.terminate()
    assert "ended by SIGTERM" in victim.check_end()


def progress(victim: Victim) -> int:
    found = re.findall(r"\| (\d+)/", victim.said())
    return int(found[-1]) if found else 0
