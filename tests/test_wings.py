"""Every wing can be deleted, and what is left still trains; and what a run has no use for is not loaded."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.core.training.options import CoreOptions
from gradwire.options import Options
from gradwire.wings import WINGS as OF_RUNS
from tests.ranks import LIMIT
from tests.runs import ROOT
from tests.test_sources import WINGS

PANELS = {type(wing).__module__.split(".")[1]: wing.panel for wing in OF_RUNS if wing.panel}
SOME = ("checkpoints", "diagnosis")
WITHOUT = """
import contextlib, json, sys
from gradwire.command_line import main

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    small = ["--n_gpus", "2", "--epochs", "1", "--train_size", "64", "--device", "cpu", "--results_dir", "runs"]
    with contextlib.suppress(SystemExit):
        main(["--help"])
    assert main(["--strategy", "param_server", *small]) == 0
    for option in options:
        assert main([*small, f"--{option}=1"]) == 2
"""
LOADED = """
import sys
from gradwire.command_line import main

if __name__ == "__main__":
    main("--strategy param_server --n_gpus 2 --epochs 1 --train_size 64 --device cpu --results_dir runs".split())
    print(*sorted({str(getattr(module, "__file__", "")) for module in sys.modules.values()}), sep="\\n")
"""
MOST_LINES = 9_500
"""That a run by a server loads in the process that starts it."""


def call(folder: Path, code: str, *arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, with the project at `root`."""
    (folder / "script.py").write_text(code)
    command = [sys.executable, "script.py", *arguments]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(root), "PATH": "", "HOME": str(folder)}, capture_output=True,
        text=True, timeout=10 * LIMIT, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "wings",
    [
        pytest.param(SOME, marks=pytest.mark.end_to_end),
        *(pytest.param((wing,), marks=pytest.mark.exhaustive) for wing in sorted(WINGS)),
    ],
)
def test_without_a_wing_its_options_are_gone_and_all_else_works(wings: tuple[str, ...], tmp_path: Path) -> None:
    for package in ("gradwire", "strategies"):
        shutil.copytree(ROOT / package, tmp_path / package)  # what is compiled too
    options = []
    for wing in wings:
        shutil.rmtree(tmp_path / "gradwire" / wing)
        options += [option.name for option in dataclasses.fields(PANELS[wing])] if wing in PANELS else []
    done = call(tmp_path, WITHOUT, json.dumps(options), root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("there is no such option") == len(options), done.stderr


def test_every_option_is_of_the_core_or_of_a_wing_that_says_so() -> None:
    of_core = {option.name for option in dataclasses.fields(CoreOptions)}
    of_wings = {option.name for panel in PANELS.values() for option in dataclasses.fields(panel)}
    assert of_core | of_wings == {option.name for option in dataclasses.fields(Options)}
    assert not of_core & of_wings


def test_a_run_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    done = call(tmp_path, LOADED)
    ours = tuple(f"{ROOT / package}/" for package in ("gradwire", "strategies"))
    files = [Path(line) for line in done.stdout.splitlines() if line.startswith(ours)]
    assert files, done.stderr
    for large in ("torch/_dynamo", "sympy", "sklearn", "scipy", "matplotlib", "torchvision", "blosc2"):
        assert f"/{large}/" not in done.stdout
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES
    unused = ("compression/topk", "diagnosis/memory.py", "checkpoints/saved", "pictures/scalars", "baselines/builtin")
    assert not [file for file in files if str(file).startswith(tuple(str(ROOT / "gradwire" / wing) for wing in unused))]
