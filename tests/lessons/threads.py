"""Checks whose ranks are threads of the test's process: for code that is known to end, and to spare processes."""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest
import torch

from lessons import check
from lessons.check import run_solution
from lessons.judge import draw, play
from lessons.lab import Case, Lab, Run, Vectors
from lessons.patience import Patience
from lessons.processes import Process, Ranks
from lessons.rank import Source, serve
from lessons.report import Report
from lessons.transport import Judge
from tests.lessons.mistakes import Change, write
from tests.ranks import LIMIT


class ThreadRanks(Ranks):
    """Ranks that load and run the functions by `serve`, as the processes of a check do."""

    def __init__(self, lab: Lab, source: Source) -> None:
        super().__init__(lab, source)
        self.patience = Patience(LIMIT, LIMIT)

    def _begin(self, n: int) -> None:
        for rank in range(len(self._processes), n):
            mine, theirs = Pipe()
            self._processes.append(_ThreadRank(rank, mine, Thread(target=self._serve, args=(theirs,), daemon=True)))

    def _serve(self, pipe: Connection) -> None:
        with pipe, suppress(OSError, EOFError):  # the judge has closed its end
            serve(Judge(pipe), self.source, self.lab.functions, self.lab.name)


class _ThreadRank(Process):
    def __init__(self, rank: int, pipe: Connection, thread: Thread) -> None:
        self.rank, self.pid, self.pipe, self.has_loaded = rank, os.getpid(), pipe, False
        self._thread = thread
        thread.start()

    def end(self) -> None:
        self.pipe.close()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


@cache
def _inputs(lab: Lab, case: Case) -> Sequence[Vectors]:
    """Return inputs that all checks of the session share: what lab 6 measures of its clusters is kept, too."""
    return draw(lab, case).inputs


@cache
def _reference(lab: Lab, case: Case) -> Run:
    return run_solution(lab, Run(case, _inputs(lab, case)))


def _run_by_threads(lab: Lab, source: Source) -> Run:
    """Take the place of `run_on_processes`."""
    with ThreadRanks(lab, source) as ranks:
        return play(ranks, draw(lab, lab.real))


def judge_changed(lab: str, *changes: Change, name: str = "mine") -> Report:
    """Return the report on a lab's solution with these changes, in a file `name`.py."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "Ranks", ThreadRanks)
        patch.setattr(check, "run_on_processes", _run_by_threads)
        patch.setattr(check, "draw", lambda lab, case: Run(case, _inputs(lab, case)))
        patch.setattr(check, "run_solution", lambda lab, run: _reference(lab, run.case))
        patch.setattr(sys, "path", [*sys.path])
        path = write(Path(folder), lab, *changes, name=name)
        n = torch.get_num_threads()
        torch.set_num_threads(1)  # the vectors are short, and other tests run beside this one
        try:
            return check.check_file(lab, path)
        finally:
            torch.set_num_threads(n)
