"""Whole runs of train.py that are to be hit."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gradwire.core.records.unfinished import run_lock
from tests.ranks import LIMIT, left_in_shared_memory, wait_until
from tests.runs import ROOT


class Victim:
    """A run of train.py with 3 ranks that would last for hours, in its own session. It mostly waits for rank 1."""

    def __init__(self, folder: Path, strategy: str, *options: str) -> None:
        self.left_by_others = left_in_shared_memory()
        self.results = folder / "results"
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "train.py", "--strategy", strategy, "--n_gpus", "3", "--epochs", "100000",
                 "--device", "cpu", "--slow", "1:20", "--timeout", str(LIMIT), "--results_dir", str(self.results),
                 *options],
                cwd=ROOT, stdout=errors, stderr=errors, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All that live in the session of the run."""
        alive = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return alive

    def ranks(self) -> list[psutil.Process]:
        """The processes of the ranks, in rank order: children of the launcher's child, the fork server."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            ranks = [child for child in children if child.ppid() != self.process.pid]
        except psutil.NoSuchProcess:
            return []
        largest = int(Path("/proc/sys/kernel/pid_max").read_text())  # the system gives them in turn, and begins again
        return sorted(ranks, key=lambda rank: (rank.pid - self.process.pid) % largest)

    def wait_until(self, what: str) -> list[psutil.Process]:
        """Wait until the ranks are "started" or "training"; return them."""

        def is_so() -> bool:
            trains = what == "started" or re.search(r"\| [1-9]\d*/", self.said())
            return bool(trains and len(self.ranks()) == 3) or self.process.poll() is not None

        wait_until(is_so)
        ranks = self.ranks()
        assert len(ranks) == 3, f"the run was never {what}: {self.said()}"
        return ranks

    def said(self) -> str:
        return self.errors.read_text(errors="replace")

    def check_end(self) -> str:
        """Check that the run ends and leaves nothing; return what it said after its progress bar."""
        assert self.process.wait(LIMIT) != 0
        assert wait_until(lambda: self.processes() == []), self.processes()
        if self.process.returncode == -signal.SIGKILL and self.results.exists():
            with run_lock(self.results, "next"):
                pass  # the next run removes what the killed one has left
        assert not self.results.exists() or list(self.results.iterdir()) == []
        assert wait_until(lambda: left_in_shared_memory() <= self.left_by_others), left_in_shared_memory()
        said = self.said()
        assert "Traceback" not in said
        assert said.count("error:") <= 1, said
        return said[said.find("error:") :] if "error:" in said else ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Victim]]:
    """Gives a function that starts a run of a strategy, with such options; it is killed at the end of the test."""
    started: list[Victim] = []

    def start(strategy: str, *options: str) -> Victim:
        started.append(Victim(tmp_path, strategy, *options))
        return started[-1]

    yield start
    for victim in started:
        for process in victim.processes():
            process.kill()
