"""The course for students, and a lab's autograder: each works in a folder that has nothing else of the project."""

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from docs.pages import with_link
from lessons import autograder, release
from lessons.check import SOLUTIONS
from lessons.labs import LABS
from tests.lessons.judged import judge_here
from tests.lessons.mistakes import mistakes_of, write
from tests.ranks import LIMIT
from tests.runs import ROOT, handlers_kept

PACKAGES = list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
PYTHON = (sys.executable, "-S")  # without what an editable install of the project puts on the path


def run_there(folder: Path, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*more.pop("path", []), *PACKAGES])} | more
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * LIMIT,
                          check=False)  # fmt: skip


RELEASED = ("ring", "compression")  # the labs whose solutions are played for it here: all take a minute


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released") / "course"
    with handlers_kept(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "LABS", {name: LABS[name] for name in RELEASED})
        assert release.main([str(folder)]) == 0
    return folder


@pytest.mark.end_to_end
@pytest.mark.xdist_group("release")
def test_the_course_for_students_checks_without_solutions(course: Path, tmp_path: Path) -> None:
    wrong = write(tmp_path, "ring", *mistakes_of("ring")["sends_whole_vectors"].changes, name="wrong")
    picture = tmp_path / "wrong.svg"
    found = run_there(course, *PYTHON, "-m", "lessons.check", "ring", wrong, "--picture", str(picture))
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "points: 80 of 100"), found.stderr
    assert "bytes of a rank: 480000; the best known needs 240000" in found.stdout
    assert "<svg" in picture.read_text()
    assert not (course / "lessons" / "solutions").exists()


@pytest.mark.xdist_group("release")
def test_it_has_a_reference_of_every_case(course: Path) -> None:
    for name in RELEASED:
        kept = pickle.loads((course / "lessons" / "references" / f"{name}.pickle").read_bytes())
        assert set(kept) == {*LABS[name].cases, LABS[name].scored}
        assert not any(run.inputs for run in kept.values())


@pytest.mark.xdist_group("release")
def test_the_links_of_its_pages_lead_somewhere(course: Path) -> None:
    pages = [*(course / "lessons").glob("*.ipynb"), course / "lessons" / "README.md"]
    links = {(page.name, link) for page in pages for link in re.findall(r"\]\(([^):#]+)\)", page.read_text())}
    assert len(links) > len(LABS)
    assert not [link for link in links if not (course / "lessons" / link[1]).exists()]


@pytest.mark.xdist_group("release")
def test_no_file_of_it_has_the_text_of_a_solution(course: Path) -> None:
    files = [path for path in course.rglob("*") if path.suffix in (".py", ".ipynb", ".md")]
    texts = {path: "".join(path.read_text().replace("\\n", "").split()) for path in files}
    bodies = 0
    for name, lab in LABS.items():
        source = (SOLUTIONS / f"{name}.py").read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name in lab.functions and len(node.body) > 2:
                body = "".join("".join((ast.get_source_segment(source, line) or "").split()) for line in node.body[1:])
                bodies += 1
                assert not [path for path, text in texts.items() if body in text], f"{name}: {node.name}"
    assert bodies >= len(LABS)
    assert not [path for path in files if "solutions" in path.parts or "tests" in path.parts]


@pytest.mark.end_to_end
def test_an_autograder_writes_what_the_check_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with handlers_kept():
        assert autograder.main(["ring"]) == 0
    for name in ("source", "submission", "results"):
        (tmp_path / "autograder" / name).mkdir(parents=True)
    with zipfile.ZipFile("autograder_ring.zip") as packed:
        for entry in packed.infolist():
            Path(packed.extract(entry, "autograder/source")).chmod(entry.external_attr >> 16)
    for script in ("setup.sh", "run_autograder"):
        assert os.access(f"autograder/source/{script}", os.X_OK)
        subprocess.run(["bash", "-n", f"autograder/source/{script}"], check=True)
    python = tmp_path / "autograder" / "source" / "venv" / "bin" / "python"  # which setup.sh makes
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {" ".join(PYTHON)} "$@"\n')
    python.chmod(0o755)
    shutil.copy("autograder/source/run_autograder", "autograder/run_autograder")
    mine = write(tmp_path / "autograder" / "submission", "ring",
                 *mistakes_of("ring")["forgets_to_divide"].changes, name="my_own")  # fmt: skip
    done = run_there(tmp_path / "autograder", "./run_autograder")
    assert done.returncode == 0, done.stderr
    results = json.loads(Path("autograder/results/results.json").read_text())
    assert results == json.loads(judge_here("ring", mine).as_gradescope())
    assert (results["score"], results["tests"][0]["score"]) == (40, 40)


def test_a_hosted_notebook_fetches_the_course(tmp_path: Path) -> None:
    """In place of what pip installs is what is installed here."""
    first, fetch, *_ = json.loads(with_link(ROOT / "lessons" / "2_ring.ipynb"))["cells"]
    assert first["source"][0].startswith("[Open in Colab](https://colab.research.google.com/github/")
    assert first["source"][0].endswith("/blob/main/lessons/2_ring.ipynb)\n")
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "git").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\nmkdir course\n'
                             f'cp -r {ROOT}/lessons {ROOT}/requirements.txt course\n')  # fmt: skip
    (bin / "git").chmod(0o755)
    check = (
        "".join(fetch["source"]).replace("-m pip", "-c 'print()' -m pip") + "\nimport lessons\nprint(lessons.__file__)"
    )
    found = run_there(tmp_path, *PYTHON, "-c", check, PATH=f"{bin}:{os.environ['PATH']}")
    assert found.stdout.splitlines()[-1] == f"{tmp_path}/course/lessons/__init__.py", found.stderr
    assert (tmp_path / "said").read_text().startswith("clone -q --depth 1 https://github.com/")
    found = run_there(ROOT / "lessons", *PYTHON, "-c", check, PATH=f"{bin}:{os.environ['PATH']}")
    assert found.stdout.splitlines()[-1] == f"{ROOT}/lessons/../lessons/__init__.py", "nothing is fetched"
    assert len((tmp_path / "said").read_text().splitlines()) == 1
