"""Ranks that mpirun has started: what the launcher says of itself, how a run ends, and how it fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from torch import nn

from launchers import find_launcher, mpirun
from launchers.environment import environment_of_others
from records.errors import UsageError
from tests.pools import ENVIRONMENT, NEEDS_MPI
from tests.pools import mpirun as started_by_mpirun
from tests.ranks import LIMIT
from tests.runs import ROOT, SMALL_ARGUMENTS, metadata, said
from tests.workload import is_rank, linear

under_mpirun = NEEDS_MPI[0]


def train(folder: Path, *options: str, n: int = 2) -> "subprocess.CompletedProcess[str]":
    """Run train.py under mpirun."""
    line = [*started_by_mpirun(n, "train.py"), *SMALL_ARGUMENTS, *options, "--results_dir", str(folder)]
    return subprocess.run(
        line, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT, check=False
    )


@pytest.mark.usefixtures("started")
def test_mpirun_is_found_where_it_has_started_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = find_launcher()
    assert (launcher.name, launcher.world_size, launcher.is_first) == ("mpi", 3, False)
    assert find_launcher("local").name == "local", "what is named counts more than what is found"
    assert "OMPI_COMM_WORLD_SIZE" not in environment_of_others()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 1 of 3, as far as MPI says."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    found = SimpleNamespace(COMM_WORLD=SimpleNamespace(size=3, rank=1), Get_library_version=lambda: "an MPI")
    monkeypatch.setattr(mpirun, "_mpi", lambda: found)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def test_a_process_that_no_mpirun_has_started_is_no_rank_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "_mpi", lambda: mock.Mock(COMM_WORLD=SimpleNamespace(size=1, rank=0)))
    with pytest.raises(UsageError, match=r"^--launcher mpi: no mpirun has started this process; mpirun -n 4 "):
        find_launcher("mpi")


def test_without_mpi4py_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with mock.patch.dict(sys.modules, {"mpi4py": None}):
        code, text = said("--strategy", "ring_all_reduce")
    assert code == 2
    assert text.count("\n") == 1
    assert "--launcher mpi: mpi4py cannot be used" in text
    assert "pip install -e '.[mpi]'" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--launcher", "ssh"), "--launcher ssh: unknown; there are local, torchrun, mpi, dask"),
        (("--launcher", "torchrun"), "--launcher torchrun: it has not started this process; torchrun --nproc"),
        (("--launcher", "local", "--scheduler", "tcp://a:1"), "--scheduler tcp://a:1: is Dask's; leave --launcher"),
    ],
)
def test_a_launcher_that_cannot_be_is_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    code, text = said("--strategy", "ring_all_reduce", *options, "--results_dir", str(tmp_path))
    assert code == 2
    assert message in text
    assert list(tmp_path.iterdir()) == []


# Whole runs


@pytest.mark.slow
@pytest.mark.exhaustive
@under_mpirun
def test_a_run_has_its_records(tmp_path: Path) -> None:
    done = train(tmp_path, "--strategy", "param_server", "--checkpoint_every", "5", "--evaluator")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    facts = metadata(tmp_path)
    assert facts["transport"] == "mpi"
    assert facts["mpi"]
    assert (tmp_path / "run.checkpoints" / "evaluation.csv").exists()


@pytest.mark.slow
@under_mpirun
@pytest.mark.parametrize(
    ("n", "strategy", "model", "message"),
    [
        pytest.param(2, "inconsistent_reads", "tests.workload:linear", "error: --strategy inconsistent_reads: needs "
                     "shared memory", marks=pytest.mark.exhaustive, id="what all refuse"),
        pytest.param(2, "ring_all_reduce", f"{__name__}:endless", "error: rank 0 waited 2 s for all ranks to start",
                     marks=pytest.mark.exhaustive, id="one that never comes"),
        pytest.param(3, "ring_all_reduce", "tests.workload:mortal", "rank 2 ", marks=pytest.mark.end_to_end, id="died"),
        pytest.param(3, "ring_all_reduce", "tests.workload:raises_on_rank_1", "a layer of rank 1 is broken",
                     marks=pytest.mark.exhaustive, id="failed"),
    ],
)  # fmt: skip
def test_when_one_rank_fails_all_end_and_it_is_named(
    tmp_path: Path, n: int, strategy: str, model: str, message: str
) -> None:
    timeout = ("--timeout", "2") if "endless" in model else ()
    done = train(tmp_path, "--strategy", strategy, "--model", model, *timeout, n=n)
    assert done.returncode not in (0, None)
    assert message in done.stderr
    assert list(tmp_path.glob("run.*")) == []


def endless(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a model, except on rank 1, which it keeps for ever."""
    while is_rank(1):
        signal.pause()
    return linear(input_shape, n_classes)
