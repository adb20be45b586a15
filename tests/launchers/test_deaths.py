"""Servers that lose all their workers, or many: whole runs. See also `tests/strategies`."""

import contextlib
import random
import re
import time
from pathlib import Path

import psutil
import pytest

from tests.launchers.test_failures import Victim, victims

__all__ = ["victims"]


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
