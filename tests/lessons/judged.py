"""Checks that run a student's functions in the test's process: for code that is known to end."""

import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from lessons import check
from lessons.check import run_solution
from lessons.judge import draw, play
from lessons.lab import Case, Lab, Run, Vectors
from lessons.processes import Student, load_for
from lessons.report import Report
from lessons.source import Source
from tests.lessons.mistakes import Change, write


class Here(Student):
    """Takes the place of the process that runs a student's functions."""

    def __init__(self, lab: Lab, source: Source) -> None:
        self.lab, self.source, self.printed = lab, source, ""
        self.yours: list[SimpleNamespace] = []

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def play(self, run: Run) -> None:
        """See Student."""
        load_for(self.yours, run.case.n, self.lab, self.source)
        play(self.lab, self.yours, run, self.source)


@cache
def _inputs(lab: Lab, case: Case) -> Sequence[Vectors]:
    """Return inputs that all checks of the session share: what lab 6 measures of its clusters is kept, too."""
    return draw(lab, case).inputs


@cache
def _reference(lab: Lab, case: Case) -> Run:
    return run_solution(lab, Run(case, _inputs(lab, case)))


def _run_here(lab: Lab, source: Source) -> Run:
    """Take the place of `run_on_processes`."""
    run = draw(lab, lab.real)
    Here(lab, source).play(run)
    return run


def judge_changed(lab: str, *changes: Change, name: str = "mine") -> Report:
    """Return the report on a lab's solution with these changes, in a file `name`.py."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "Student", Here)
        patch.setattr(check, "run_on_processes", _run_here)
        patch.setattr(check, "draw", lambda lab, case: Run(case, _inputs(lab, case)))
        patch.setattr(check, "run_solution", lambda lab, run: _reference(lab, run.case))
        patch.setattr(sys, "path", [*sys.path])
        return check.check_file(lab, write(Path(folder), lab, *changes, name=name))
