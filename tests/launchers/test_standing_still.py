"""Time in which everything stood still counts towards no limit; a rank that alone is stopped is found."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchers import Job
from launchers.ranks import Ranks
from tests.ranks import launch
from transports.base import Transport
from transports.timing import SLICE_S, RunningClock

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 20.0  # in which a loaded machine starts a rank


def test_the_launcher_misses_no_rank_after_a_stop_of_everything() -> None:
    clock = [0.0]
    ranks = Ranks(Job(print, 2, timeout=5.0), running=RunningClock(lambda: clock[0]))
    ranks.last_heard = {0: 0.0, 1: 0.0}
    clock[0] += 86400
    assert ranks._silent() == {}
    while clock[0] < 86400 + 6:  # rank 1 alone is stopped
        clock[0] += SLICE_S
        ranks.last_heard[0] = ranks.running()
    assert list(ranks._silent()) == [1]


def wait_for_a_word(transport: Transport, report: Callable[[Any], None], folder: str) -> str:
    """Rank 1 waits for rank 0, which waits until it is told to end."""
    report("begun")
    if transport.rank == 1:
        return str(transport.recv(0, "word").object)
    while not Path(folder, "end").exists():
        transport.sleep(0.05)
    transport.isend("continued", 1, "word")
    return "continued"


def launch_and_print(folder: str) -> None:
    def tell(rank: int, value: Any) -> None:
        print(value, flush=True)

    print(launch(wait_for_a_word, 2, folder, on_report=tell, timeout=TIMEOUT_S), flush=True)


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_run_that_was_stopped_for_longer_than_its_time_out_continues(tmp_path: Path) -> None:
    script = f"from tests.launchers import {Path(__file__).stem} as test; test.launch_and_print({str(tmp_path)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=PROJECT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as launcher:  # fmt: skip
        try:
            assert launcher.stdout is not None
            assert [launcher.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
            os.killpg(launcher.pid, signal.SIGSTOP)  # all its processes: a batch system, or Ctrl-Z
            time.sleep(TIMEOUT_S + 1)
            os.killpg(launcher.pid, signal.SIGCONT)
            (tmp_path / "end").touch()
            assert launcher.communicate(timeout=100) == ("['continued', 'continued']\n", "")
        finally:
            launcher.kill()
