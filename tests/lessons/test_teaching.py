"""The page for teachers: it has every lab, and commands whose options exist."""

import re
import shlex

import pytest

from gradwire import command_line
from gradwire.virtual_time import simulate
from lessons.check import SOLUTIONS
from lessons.labs import LABS
from tests.runs import ROOT

PAGE = (ROOT / "lessons" / "teaching.md").read_text(encoding="utf-8")
PLAN = re.findall(r"^\| (\d+) \| `(python [^`]+)` \|.*\| (\d) \|$", PAGE, re.MULTILINE)


def test_every_lab_has_its_sessions_and_a_question_that_it_has() -> None:
    assert [int(number) for number, *_ in PLAN] == list(range(1, len(LABS) + 1))
    for number, _, question in PLAN:
        (answers,) = SOLUTIONS.glob(f"{number}_*.md")
        assert re.search(rf"^{question}\. ", answers.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", [command for _, command, _ in PLAN])
def test_a_command_of_the_plan_has_options_that_exist(command: str) -> None:
    _, script, *given = shlex.split(command)
    if script == "train.py":
        command_line.parse_run(given, None, "")
    elif script == "simulate.py":
        command_line.parse_with(given, None, "", simulate.SimulationOptions)
    elif script == "-m":
        assert (given[0], given[1] in LABS) == ("lessons.check", True)
        assert (ROOT / given[2]).exists()
    else:
        assert script == "explore.py"


def test_the_calendar_of_the_whole_course_has_each_lab_once() -> None:
    rows = re.findall(r"^\| \d \| (labs? [^|]+) \|", PAGE, re.MULTILINE)
    found = [int(number) for row in rows for number in re.findall(r"\d+", row)]
    assert sorted(found) == list(range(1, len(LABS) + 1))
