"""What the README of the lessons prints for teachers works as printed."""

import inspect
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from lessons.solutions import ring
from tests.lessons.mistakes import defined, mistakes_of, solution
from tests.ranks import LIMIT
from tests.runs import ROOT

TEXT = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
HOPS_ONCE = defined(solution("ring", *mistakes_of("ring")["hops_once"].changes)).all_reduce
NBGRADER, OTTER = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(command, cwd=folder, env=os.environ | {"PATH": search, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=2 * LIMIT, check=False)  # fmt: skip


@pytest.mark.end_to_end
def test_the_commands_for_students_run_as_printed(tmp_path: Path) -> None:
    commands = re.findall(r"^    (cp .*|python .*)$", TEXT, re.MULTILINE)
    copy, check, train = [command.partition("#")[0].strip() for command in commands]
    for entry in ROOT.iterdir():
        if entry.name != "results" and not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    assert run(["bash", "-c", copy], tmp_path).returncode == 0
    begun = run(["bash", "-c", check], tmp_path)
    assert begun.returncode == 1
    assert "still to be written" in begun.stdout
    hole, _, strategy = (tmp_path / "my_ring.py").read_text().partition("@dataclass")
    imports = hole.partition("def all_reduce")[0]
    solution = inspect.getsource(ring.all_reduce)
    (tmp_path / "my_ring.py").write_text(f"{imports}{solution}\n\n@dataclass{strategy}")
    for command in (check, train):
        done = run(["bash", "-c", command], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    (record,) = (tmp_path / "results").glob("*.json")
    assert json.loads(record.read_text())["replicas_identical"]


def test_the_cell_for_nbgrader_passes_a_right_function_and_no_other() -> None:
    exec(NBGRADER, {"all_reduce": ring.all_reduce})
    with pytest.raises(AssertionError, match="without the part of rank 1"):
        exec(NBGRADER, {"all_reduce": HOPS_ONCE})


def test_the_test_for_otter_passes_a_right_function_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("otter.test_files")
    module.test_case = lambda points: lambda function: function
    monkeypatch.setitem(sys.modules, "otter", types.ModuleType("otter"))
    monkeypatch.setitem(sys.modules, "otter.test_files", module)
    found: dict[str, Any] = {}
    exec(OTTER, found)
    assert (found["name"], found["points"], found["OK_FORMAT"]) == ("ring", 100, False)
    found["test_ring"](ring.all_reduce)
    with pytest.raises(AssertionError, match="without the part of rank 1"):
        found["test_ring"](HOPS_ONCE)
