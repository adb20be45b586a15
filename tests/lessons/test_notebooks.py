"""The notebooks run from top to bottom with their holes, and with the solutions they train."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient

from lessons.check import SOLUTIONS
from lessons.labs import LABS
from tests.ranks import LIMIT
from tests.runs import ROOT

LESSONS = ROOT / "lessons"
NOTEBOOKS = sorted(LESSONS.glob("*.ipynb"))
RUNS = [
    pytest.param(path, marks=pytest.mark.end_to_end if path.stem[0] in "25" else pytest.mark.exhaustive)
    for path in NOTEBOOKS
]
LAB_OF = {path: re.findall(r'check\(\\"(\w+)\\"', path.read_text())[0] for path in NOTEBOOKS}


def name(path: Path) -> str:
    return path.stem


def execute(node: nbformat.NotebookNode) -> list[str]:
    """Return what each cell of code shows: its text and its HTML."""
    where = {"metadata": {"path": str(LESSONS)}}
    NotebookClient(node, timeout=2 * LIMIT, kernel_name="python3", resources=where).execute()
    cells = [cell for cell in node.cells if cell.cell_type == "code"]
    shown = [[out.get("text", "") + out.get("data", {}).get("text/html", "") for out in cell.outputs] for cell in cells]
    return ["".join(outputs) for outputs in shown]


def functions_of(text: str) -> dict[str, str]:
    """The source of each function at the left margin, by name."""
    module = ast.parse(text)
    return {
        node.name: ast.get_source_segment(text, node) or "" for node in module.body if isinstance(node, ast.FunctionDef)
    }


def test_every_lab_has_its_files() -> None:
    assert sorted(LAB_OF.values()) == sorted(LABS)
    for path, lab in LAB_OF.items():
        assert (SOLUTIONS / f"{path.stem}.md").exists()
        for folder in (LESSONS, SOLUTIONS):
            assert (folder / f"{lab}.py").exists()
        assert f"({path.name})" in (LESSONS / "README.md").read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_says_its_time_and_its_goals_and_is_kept_without_outputs(path: Path) -> None:
    node = nbformat.read(path, as_version=4)
    first = node.cells[0].source
    minutes = re.search(r"\*\*Time: (\d+) minutes", first)
    assert minutes
    assert 20 <= int(minutes[1]) <= 60
    assert f"| {minutes[1]} | [{path.stem}]" in (LESSONS / "README.md").read_text()
    assert "Afterwards you can" in first
    assert "## Questions" in node.cells[-1].source
    answers = (SOLUTIONS / f"{path.stem}.md").read_text()
    questions = re.findall(r"^(\d+)\. ", node.cells[-1].source, re.MULTILINE)
    assert questions == re.findall(r"^(\d+)\. ", answers, re.MULTILINE), "every question has its answer"
    points = re.findall(r" \((\d) points\)$", node.cells[-1].source, re.MULTILINE)
    rubrics = re.findall(r"^   \*(\d) points: ([^*]+)\.\*$", answers, re.MULTILINE)
    assert len(points) == len(questions)
    assert points == [named for named, _ in rubrics]
    assert points == [str(rubric.count(";") + 1) for _, rubric in rubrics], "each thing that is named gives one point"
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in node.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_the_holes_of_a_notebook_are_those_of_its_file(path: Path) -> None:
    cells = "\n\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    in_notebook, in_file = functions_of(cells), functions_of((LESSONS / f"{LAB_OF[path]}.py").read_text())
    holes = {name for name, source in in_file.items() if "NotImplementedError" in source}
    assert holes
    assert {name: in_notebook[name] for name in in_file} == in_file


@pytest.mark.parametrize("path", RUNS, ids=name)
def test_a_notebook_runs_with_its_holes(path: Path) -> None:
    shown = execute(nbformat.read(path, as_version=4))
    assert any("not yet, 0 of 100 points" in text and "still to be written" in text for text in shown)
    assert any("first have the check say that it is right" in text for text in shown)


def solved(path: Path, module: ModuleType) -> nbformat.NotebookNode:
    """Return the notebook whose check has the functions of the solution."""
    node = nbformat.read(path, as_version=4)
    cell = next(cell for cell in node.cells if cell.cell_type == "code" and "report = check(" in cell.source)
    cell.source = f"{inspect.getsource(module)}\n{cell.source}"
    return node


@pytest.mark.parametrize("path", RUNS, ids=name)
def test_a_notebook_that_is_solved_gets_all_points_and_trains_as_one_process(path: Path) -> None:
    module = __import__(f"lessons.solutions.{LAB_OF[path]}", fromlist=["*"])
    shown = execute(solved(path, module))
    assert any("right, 100 of 100 points" in text and "data:image/png" in text for text in shown)
    if "from lessons.training import train" in path.read_text():
        yours, alone = re.findall(r"([\d.]+) % of the held-out digits", "".join(shown))
        assert float(yours) == pytest.approx(float(alone), abs=1)
        assert float(yours) > 90
    assert not any("not trained" in text for text in shown)
