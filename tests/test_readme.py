"""README.md and docs/: what they quote is the code, where they point is something, what they print runs."""

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

import gradwire
from gradwire import command_line
from gradwire.arguments import read_options
from gradwire.torch_scripts.command import is_script
from gradwire.torch_scripts.simulate import ClusterScript
from gradwire.virtual_time import simulate
from strategies import collectives
from tests.images.pictures import HAS_DALI
from tests.pools import AS_ROOT
from tests.ranks import LIMIT
from tests.runs import ROOT, handlers_kept

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EVERY = [*DOCS, *(ROOT / "lessons" / page for page in ("README.md", "teaching.md")),
         *(ROOT / folder / "README.md" for folder in ("benchmarks", "experiments"))]  # fmt: skip
BESIDE = [ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
RING, OWN_STRATEGY = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(OWN_LOOP,) = re.findall(r"```python\n(from functools.*?)```", (ROOT / "docs/your_program.md").read_text(), re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# What it quotes


def test_the_ring_is_quoted_as_it_is() -> None:
    functions = (collectives.ring_all_reduce, collectives.reduce_scatter, collectives.all_gather)
    assert "\n".join(inspect.getsource(function) for function in functions) == RING.replace("\n\n\n", "\n\n")


def test_two_commands_set_all_up_and_are_those_that_ci_runs() -> None:
    fresh = "python3 -m venv .venv && . .venv/bin/activate && "
    train, test = re.findall(rf"^    ({fresh}.*)$", README, re.MULTILINE)
    assert train == f"{fresh}pip install -r requirements.txt && python train.py --strategy param_server --n_gpus 4"
    assert test == f"{fresh}pip install -e '.[dev]' && pytest"
    (read,) = re.findall(r"sed -n '.*' README.md", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    done = subprocess.run(["bash", "-c", read], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout.splitlines() == [train, test]


# Where they point


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*EVERY, *BESIDE], ids=name)
def test_links_lead_to_something_and_sources_that_are_named_are_there(path: Path) -> None:
    of_others = path.name == "programs.md"  # which names files of other repositories
    for source in [] if of_others else re.findall(r"`([a-z_]+/[\w/]+\.py)`", path.read_text(encoding="utf-8")):
        assert (ROOT / source).exists() or "NAME" in source or path not in DOCS, source
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


# What they print

NOT_HERE = ("-m venv", "yourmodule", "--download", "-m benchmarks", "experiments/")  # need a network, or much time
NOT_RUN = () if HAS_DALI else ("--loader dali",)  # though its options are checked


def commands(path: Path) -> list[str]:
    """The commands of a page that start something of this project, in the order in which they are printed."""
    text = path.read_text(encoding="utf-8")
    lines = re.findall(r"^    ((?:python|torchrun|mpirun) [^#\n]*)", text, re.MULTILINE)
    lines += [command for row in re.findall(r"^\| `python.*$", text, re.MULTILINE) for command in row.split("`")[1::2]]
    return [line.strip() for line in lines if not any(word in line for word in NOT_HERE)]


PAGES = [path for path in DOCS if commands(path)]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_have_options_that_exist(path: Path) -> None:
    for command in commands(path):
        words = shlex.split(command)
        if "train.py" in words and not {"--help", "--list", "--resume", "--replay"} & set(words):
            given = words[words.index("train.py") + 1 :]
            command_line.parse_run(given, None, "")  # raises UsageError
        if "simulate.py" in words:
            given = words[words.index("simulate.py") + 1 :]
            if is_script(given):
                read_options(given[: given.index("--")] if "--" in given else given, ClusterScript, "")
                continue
            command_line.parse_with(given, None, "", simulate.SimulationOptions)


IN_CI = ("README.md",)  # the other pages before a release
TO_RUN = [
    pytest.param(path, marks=pytest.mark.end_to_end if name(path) in IN_CI else pytest.mark.exhaustive)
    for path in PAGES
]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", TO_RUN, ids=name)
def test_commands_run_as_printed_one_after_the_other(path: Path, tmp_path: Path) -> None:
    for entry in ROOT.iterdir():
        if entry.name != "results" and not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    search, done_already = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), set[str]()
    for command in commands(path):
        without_name = re.sub(r"(--run_name |results/)\w+", "", command)
        if any(word in command for word in NOT_RUN) or without_name in done_already:
            continue
        done_already.add(without_name)
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=os.environ | AS_ROOT | {"PATH": search}, capture_output=True,
            text=True, timeout=4 * LIMIT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_example_of_ones_own_strategy_trains_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OWN_STRATEGY.count("\n") < 40
    (tmp_path / "every_other.py").write_text(OWN_STRATEGY)  # a name that no other test imports
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = "--strategy every_other:EveryOther --n_gpus 2 --rest 3 --run_name run --compute 1ms"
    with handlers_kept():  # in virtual time, in this process
        assert simulate.main(arguments.split()) == 0
    facts = json.loads((tmp_path / "results" / "run.json").read_text())
    assert (facts["strategy"], facts["options"]["rest"]) == ("every_other:EveryOther", 3)
    assert facts["test_accuracy"] > 0.9


@pytest.mark.end_to_end
def test_the_script_with_the_hook_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compression.ddp_with_codec"], cwd=ROOT, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy ([\d.]+)", done.stdout)
    assert found, done.stdout
    assert min(map(float, found)) > 0.8


# What is needed: an older Python says so, and the same versions for all

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
PYTHON = "Programming Language :: Python :: "


def requirements(lines: Iterable[str]) -> list[Requirement]:
    bare = [line.partition("#")[0].strip() for line in lines]
    return [Requirement(line) for line in bare if line]


def lines_of(file: str) -> list[str]:
    return (ROOT / file).read_text(encoding="utf-8").splitlines()


ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "experiments", "lessons"}


def test_what_is_needed_is_written_once() -> None:
    assert PROJECT["project"]["dynamic"] == ["version", "dependencies"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {
        "version": {"attr": "gradwire.__version__"}, "dependencies": {"file": "requirements.txt"}
    }  # fmt: skip
    (newest, *_) = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest == gradwire.__version__
    assert sorted(path.name for path in ROOT.glob("*.txt")) == ["constraints.txt", "requirements.txt"]
    assert {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]} == ROOMS


def test_the_main_job_says_so_before_it_imports_anything() -> None:
    for file in ("train.py", "gradwire/__init__.py"):
        ast.parse((ROOT / file).read_text(encoding="utf-8"), feature_version=(3, 7))
    source = ast.parse((ROOT / "gradwire" / "command.py").read_text(encoding="utf-8"), feature_version=(3, 7))
    *imports, check = source.body[1:3]  # after the docstring
    assert [ast.unparse(node) for node in imports] == ["import sys"]
    assert isinstance(check, ast.If)
    version = type("Version", (tuple,), {"major": 3, "minor": 10})
    old = SimpleNamespace(version_info=version((3, 10)), exit=sys.exit)
    with pytest.raises(SystemExit) as stop:
        exec(compile(ast.Module([check], []), "command.py", "exec"), {"sys": old})
    assert stop.value.code == "error: Python 3.10 is too old; this needs Python 3.11 or later"


def test_the_version_is_told_where_nothing_is_installed() -> None:
    alone = [sys.executable, "-S", "-m", "gradwire", "--version"]  # without the packages that are installed
    done = subprocess.run(alone, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == f"gradwire {gradwire.__version__}\n"


def test_the_pythons_that_are_named_are_the_same_everywhere() -> None:
    project, tool = PROJECT["project"], PROJECT["tool"]
    versions = [line.removeprefix(PYTHON) for line in project["classifiers"] if line.startswith(PYTHON)]
    oldest, newest = versions[0], versions[-1]
    assert versions == [f"3.{minor}" for minor in range(int(oldest[2:]), int(newest[2:]) + 1)]
    assert project["requires-python"] == f">={oldest}"
    assert (tool["mypy"]["python_version"], tool["ruff"]["target-version"]) == (oldest, f"py{oldest.replace('.', '')}")
    assert f"You need Python {oldest} to {newest} " in README
    assert f"this needs Python {oldest} or later" in (ROOT / "gradwire" / "command.py").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    assert f'python: ["{oldest}", "{newest}"]' in workflow
    assert "run: bash .ci/run" in workflow


def test_the_constraints_name_a_version_of_all_that_is_required() -> None:
    pins = {pin.name.lower(): str(pin.specifier)[2:] for pin in requirements(lines_of("constraints.txt"))}
    needed = [*lines_of("requirements.txt"), *PROJECT["build-system"]["requires"], *chain(*EXTRAS.values())]
    for need in (requirement for requirement in requirements(needed) if requirement.name != PROJECT["project"]["name"]):
        assert need.specifier.contains(pins[need.name.lower()]), need.name


def test_the_extras_are_those_that_the_messages_name() -> None:
    python = "".join(path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert set(re.findall(r"pip install -e '\.\[(\w+)\]'", python)) == set(EXTRAS) - {"test", "dev"}
