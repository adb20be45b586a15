"""A rank that is hit at a chosen moment ends a whole run by its name, and leaves nothing. The launcher is this process.

What happens when the launcher itself is hit is in `test_failures.py`.
"""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwire import run
from gradwire.checkpoints.folder import listed
from gradwire.core.records.errors import RunFailed
from tests.ranks import left_in_shared_memory, wait_until
from tests.runs import said, small


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    before = left_in_shared_memory()
    yield
    assert ranks_here() == {}
    assert not (tmp_path / "results").exists() or list((tmp_path / "results").iterdir()) == []
    assert wait_until(lambda: left_in_shared_memory() <= before), left_in_shared_memory()


def ranks_here() -> dict[int, int]:
    """Return the processes of this one that are ranks, by their numbers."""
    named = {process.name: process.pid or 0 for process in multiprocessing.active_children()}
    return {rank: named[name] for rank in range(3) if (name := f"rank {rank}") in named}


def hit(folder: Path, strategy: str, ranks: list[int], when: str) -> str:
    """Start a run of 3 ranks that would last for hours; kill `ranks` when all are "started", or "training", which a
    checkpoint shows. Return the run's error.
    """
    is_so: dict[str, Callable[[], bool]] = {
        "started": lambda: len(ranks_here()) == 3,
        "training": lambda: bool(listed(folder / "c")),
    }

    def send() -> None:
        if wait_until(is_so[when]):
            for rank in ranks:
                os.kill(ranks_here()[rank], signal.SIGKILL)

    endless: dict[str, Any] = {"n_gpus": 3, "epochs": 100_000, "lr": 0.001, "checkpoint_every": 1, "checkpoint_keep": 2}
    options = small(folder / "results", strategy, checkpoint_dir=str(folder / "c"), **endless)
    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(RunFailed) as failed:
        run(options, quiet=True)
    sender.join()
    assert failed.value.exit_code == 1
    return str(failed.value)


@pytest.mark.parametrize(
    ("strategy", "rank", "when"),
    [("ring_all_reduce", 1, "started"), ("param_server", 0, "training")],
)
def test_a_killed_rank_ends_the_run_by_name(tmp_path: Path, strategy: str, rank: int, when: str) -> None:
    text = hit(tmp_path, strategy, [rank], when)
    role = "server" if (strategy, rank) == ("param_server", 0) else "worker"
    assert text.startswith(f"rank {rank} ({role}) was killed by SIGKILL")
    if when == "training":
        assert re.search(rf"rank \d \(\w+\) waited for .* from rank {rank}", text), text


def test_without_any_worker_the_run_ends_and_says_so(tmp_path: Path) -> None:
    text = hit(tmp_path, "async_param_server", [1, 2], "training")
    assert re.match(r"rank [12] \(worker\) was killed by SIGKILL", text), text


def test_an_exception_in_a_rank_is_told_with_its_own_traceback_only(tmp_path: Path) -> None:
    code, text = said("--n_gpus", "3", "--device", "cpu", "--results_dir", str(tmp_path / "results"),
                      "--model", "tests.workload:raises_on_rank_1")  # fmt: skip
    assert code == 1
    assert "error: rank 1 (worker) raised RuntimeError: a layer of rank 1 is broken" in text
    assert text.count("error: ") == text.count("Traceback") == 1, text
