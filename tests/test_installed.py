"""pip install: a wheel in a fresh environment, outside of the repository, has all that a program of one's own needs."""

import re
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.runs import ROOT
from tests.test_names import output_of
from tests.test_readme import OWN_LOOP

NOT_BUILT = (".*", "build", "*.egg-info", "results", "tests", "experiments", "lessons", "media", "data")


def call(*command: str | Path, cwd: Path) -> str:
    return output_of(*command, cwd=cwd, PATH="/usr/bin:/bin")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with what this one has: torch is not downloaded again."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_BUILT))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source", cwd=folder)
    shutil.rmtree(folder / "source")
    venv.create(folder / "venv", with_pip=False)
    own = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("gradwire-*.whl")
    top = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"gradwire", "strategies"}
    call(*pip, "--python", own, "install", "--no-deps", wheel, cwd=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # read after the environment's own
    return own


@pytest.mark.end_to_end
def test_the_loop_of_the_readme_runs_as_printed_in_another_folder(python: Path, tmp_path: Path) -> None:
    assert OWN_LOOP.count("\n") < 40
    (tmp_path / "own_loop.py").write_text(OWN_LOOP)
    values = re.findall(r"(\w+) \[(.*)\]", call(python, "own_loop.py", cwd=tmp_path))
    assert [strategy for strategy, _ in values] == ["param_server", "ring_all_reduce"]
    for _, ranks in values:
        results = [float(value) for value in ranks.split(",")]
        assert len(results) == 4
        assert len(set(results)) == 1, "all ranks hold the same model"
        assert abs(results[0] - 0.25) < 0.05


@pytest.mark.end_to_end
def test_runs_are_made_and_shown_in_another_folder(python: Path, tmp_path: Path) -> None:
    where = call(
        python, "-c", "import strategies; print(strategies.WorkerOptimizer, strategies.__file__)", cwd=tmp_path
    )
    assert str(python.parents[1]) in where
    train = (python.parent / "gradwire", "train")
    assert "ring_all_reduce" in call(*train, "--list", cwd=tmp_path)
    small = ("--epochs", "1", "--n_gpus", "2", "--train_size", "256", "--checkpoint_every", "3", "--evaluator")
    call(*train, *small, "--run_name", "ring", cwd=tmp_path)
    assert "ring_all_reduce" in call(python, "-m", "gradwire", "compare", "results/ring.json", cwd=tmp_path)
    call(python, "-m", "gradwire", "page", "results/ring", cwd=tmp_path)
    (page,) = (tmp_path / "results").glob("*.html")
    assert "reduce_scatter\\u003c" in page.read_text(encoding="utf-8")
