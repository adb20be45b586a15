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
from strategies import STRATEGIES, Strategy
from strategies.async_param_server import AsyncParamServer
from strategies.downpour import Downpour
from strategies.inconsistent_reads import InconsistentReads
from tests.launchers.test_failures import Victim, victims
from tests.ranks import wait_until
from tests.runs import N_TRAIN, made

__all__ = ["victims"]
EPOCHS = 8
MORTAL: dict[str, Any] = {"model": "tests.workload:mortal", "epochs": EPOCHS, "n_gpus": 4, "lr": 0.05}
BOUNDED = AsyncParamServer(max_staleness=1)
LIMIT_S = 100
BATCH = 16  # samples of a gradient, at most


@pytest.mark.parametrize("strategy", [AsyncParamServer(), BOUNDED, Downpour(), InconsistentReads()], ids=repr)
def test_the_others_give_the_samples_of_a_dead_worker(tmp_path: Path, strategy: Strategy) -> None:
    entry = made(tmp_path, strategy, **MORTAL)
    assert [(death["rank"], death["returned"]) for death in entry["deaths"]] == [(2, False)]
    table = pd.read_csv(tmp_path / "run.csv")
    assert set(table["rank"]) == {0, 1, 3}
    server = table[table["role"] == "server"].set_index("epoch")
    goals = N_TRAIN * server.index
    more = server["samples"].cumsum() - goals
    # An epoch ends with its samples and with what is under way: at most a gradient of each other worker.
    assert more.between(0, 3 * BATCH).all()
    assert entry["samples_lost"] is None
    assert table["test_accuracy"].dropna().iloc[-1] > 0.7


def test_a_dead_worker_takes_its_part_of_the_batches_with_it_where_they_are_fixed(tmp_path: Path) -> None:
    entry = made(tmp_path, "backup_workers", **MORTAL)
    assert [death["rank"] for death in entry["deaths"]] == [2]
    server = pd.read_csv(tmp_path / "run.csv").query("role == 'server'")
    assert server["step"].iloc[-1] == EPOCHS * 4, "every step is taken"
    lost = EPOCHS * N_TRAIN - server["samples"].sum()
    assert entry["samples_lost"] == lost > 0


@pytest.mark.parametrize("strategy", [AsyncParamServer(), Downpour(), InconsistentReads()], ids=repr)
def test_a_worker_that_is_started_again_joins_the_running_server(tmp_path: Path, strategy: Strategy) -> None:
    # Slow enough that the run is not over before the new process is there.
    slow: dict[str, Any] = {"slow": ("1:100", "3:100"), "epochs": 12}
    entry = made(tmp_path, strategy, **(MORTAL | slow), restarts=1)
    assert [(death["rank"], death["returned"]) for death in entry["deaths"]] == [(2, True), (2, False)]
    updates = load_events(tmp_path / "run").query("phase == 'update' and version_read >= 0")
    assert (updates["peer"] == 2).sum() == 2 * 3, "each life ends in its fourth step"


@pytest.mark.parametrize("strategy", [name for name, kind in STRATEGIES.items() if not kind.workers_may_die])
def test_the_others_end_with_the_dead_worker(tmp_path: Path, strategy: str) -> None:
    if STRATEGIES[strategy].max_ranks == 1:
        pytest.skip("has no rank 2")
    with pytest.raises(RunFailed, match=r"rank 2 \(worker\) was killed by SIGKILL"):
        made(tmp_path, strategy, **MORTAL)
    assert list(tmp_path.iterdir()) == []


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
    killed: set[int] = set()
    while len(killed) < 20:
        assert wait_until(lambda: bool(alive(victim, server, killed)), LIMIT_S), victim.said()
        time.sleep(chance.uniform(0, 0.5))  # at any moment of its life
        assert victim.process.poll() is None, victim.said()
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it may have ended by itself
            one = chance.choice(alive(victim, server, killed))
            one.kill()
            killed.add(one.pid)
    steps = progress(victim)
    assert wait_until(lambda: progress(victim) > steps, LIMIT_S), "the server goes on"
    victim.process.terminate()
    assert "ended by SIGTERM" in victim.check_end()


def alive(victim: Victim, server: psutil.Process, killed: set[int]) -> list[psutil.Process]:
    """The workers that have not been killed."""
    return [rank for rank in victim.ranks() if rank.pid != server.pid and rank.pid not in killed]


def progress(victim: Victim) -> int:
    found = re.findall(r"\| (\d+)/", victim.said())
    return int(found[-1]) if found else 0
