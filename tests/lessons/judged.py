"""Checks that run a student's functions in the test's process, in virtual time only: for code that is known to end."""

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from lessons import check, processes
from lessons.check import run_solution
from lessons.judge import draw
from lessons.lab import Case, Lab, Run, Vectors
from lessons.labs import LABS
from lessons.processes import Played, play_cases
from lessons.report import Report
from lessons.source import Source
from tests.lessons.mistakes import Change, write


def _play_here(lab: Lab, source: Source, tell: Callable[[str], None]) -> tuple[Played, str]:
    """Take the place of `play_apart`."""
    return play_cases(lab, source, lambda run: None), ""


@cache
def _inputs(lab: Lab, case: Case) -> Sequence[Vectors]:
    """Return inputs that are the same in every session."""
    return draw(lab, case, anew=False).inputs


@cache
def _reference(lab: Lab, case: Case) -> Run:
    return run_solution(lab, Run(case, _inputs(lab, case)))


def play_solution(lab: str, case: Case) -> Run:
    """Return a run of a lab's solution, whose results may be replaced."""
    run = _reference(LABS[lab], case)
    return dataclasses.replace(run, results=[*run.results])


def judge_here(lab: str, path: str) -> Report:
    """Return the report on a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "play_apart", _play_here)
        patch.setattr(check, "play_on_processes", lambda lab, source: None)
        patch.setattr(processes, "draw", lambda lab, case: Run(case, _inputs(lab, case)))
        patch.setattr(check, "run_solution", lambda lab, run: _reference(lab, run.case))
        patch.setattr(sys, "path", [*sys.path])
        return check.check_file(lab, path)


def judge_changed(lab: str, *changes: Change, name: str = "mine") -> Report:
    """Return the report on a lab's solution with these changes, in a file `name`.py."""
    with tempfile.TemporaryDirectory() as folder:
        return judge_here(lab, write(Path(folder), lab, *changes, name=name))
