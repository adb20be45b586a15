"""Ranks that torchrun or mpirun has started: what the launcher says of itself, how a run ends, and how it fails."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.checkpoints.evaluator import environment_of_others
from gradwire.clusters import mpirun
from gradwire.clusters.member import uses_nccl
from gradwire.clusters.wing import find_launcher
from gradwire.core.launchers import Job
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import prepare, resolve
from gradwire.core.transports.base import Transport
from tests.pools import ENVIRONMENT, NEEDS_MPI, Pool
from tests.pools import mpirun as started_by_mpirun
from tests.ranks import LIMIT
from tests.runs import ROOT, SMALL_ARGUMENTS, made, metadata, said, small

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
under_mpirun = NEEDS_MPI[0]


def train(starter: str, folder: Path, *options: str, n: int = 2) -> "subprocess.CompletedProcess[str]":
    """Run train.py under "torchrun" or "mpi"."""
    start = started_by_mpirun(n) if starter == "mpi" else [sys.executable, *TORCHRUN, str(n)]
    return subprocess.run(
        [*start, "train.py", *SMALL_ARGUMENTS, *options, "--results_dir", str(folder)],
        cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


# What the launcher says of itself


def bring(transport: Transport, first: str, second: str) -> tuple[int, str, str]:
    return transport.rank, first, second


def be_a_rank() -> list[Any]:
    rank = os.environ["RANK"]
    return find_launcher().launch(Job(bring, 3, (f"first of {rank}", f"second of {rank}")))


@pytest.mark.xdist_group("torchrun")
def test_the_first_argument_is_that_of_the_first_process_which_gets_the_results() -> None:
    results = [(rank, "first of 0", f"second of {rank}") for rank in range(3)]
    assert Pool.running("torchrun").run(3, be_a_rank) == [results, [], []]


@pytest.fixture
def by_mpirun(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """This process is rank 1 of 3, as far as MPI says; the launcher's name and what mpirun sets."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    found = SimpleNamespace(COMM_WORLD=SimpleNamespace(size=3, rank=1), Get_library_version=lambda: "an MPI")
    monkeypatch.setattr(mpirun, "_mpi", lambda: found)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return "mpi", "OMPI_COMM_WORLD_SIZE"


@pytest.fixture
def by_torchrun(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """This process is rank 1 of 3, as far as torchrun says; the launcher's name and what torchrun sets."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for name, value in (("WORLD_SIZE", "3"), ("RANK", "1"), ("LOCAL_WORLD_SIZE", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    return "torchrun", "TORCHELASTIC_RUN_ID"


@pytest.mark.parametrize("starter", ["by_torchrun", "by_mpirun"])
def test_it_is_found_where_it_has_started_the_process(starter: str, request: pytest.FixtureRequest) -> None:
    name, variable = request.getfixturevalue(starter)
    launcher = find_launcher()
    assert (launcher.name, launcher.world_size, launcher.is_first) == (name, 3, False)
    assert variable not in environment_of_others()
    assert find_launcher("local").name == "local", "what is named counts more than what is found"
    for options in ({"name": "dask"}, {"scheduler": "tcp://host:8786"}):
        with pytest.raises(UsageError, match=r"^--(launcher dask|scheduler tcp://\S+): .* start one, with python$"):
            find_launcher(**options)


# What is refused


@pytest.mark.usefixtures("by_torchrun")
@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        ("ring_all_reduce", {"n_gpus": 4}, "--n_gpus 4: torchrun started 3 processes"),
        ("async_param_server", {"restarts": 1}, "--restarts: .* run it without torchrun"),
        ("inconsistent_reads", {}, "--strategy inconsistent_reads: .* run it without torchrun"),
        ("fully_sharded_builtin", {}, "starts its processes itself; run it without torchrun"),
        ("ring_all_reduce_builtin", {}, "starts its processes itself; run it without torchrun"),
        ("param_server_builtin", {}, "starts its processes itself; run it without torchrun"),
    ],
)
def test_what_torchrun_cannot_do_is_refused(
    tmp_path: Path, strategy: str, changes: dict[str, Any], message: str
) -> None:
    launcher = find_launcher()
    assert resolve(small(tmp_path), launcher).n_gpus == 3
    with pytest.raises(UsageError, match=message):
        prepare(resolve(small(tmp_path, strategy, **changes), launcher), launcher)
    assert list(tmp_path.iterdir()) == []


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
        (("--launcher", "torchrun"), "--launcher torchrun: it did not start this process; torchrun --nproc"),
        (
            ("--launcher", "local", "--scheduler", "tcp://a:1"),
            "--scheduler tcp://a:1: is for --launcher dask; leave --launcher",
        ),
    ],
)
def test_a_launcher_that_cannot_be_is_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    code, text = said("--strategy", "ring_all_reduce", *options, "--results_dir", str(tmp_path))
    assert code == 2
    assert message in text
    assert list(tmp_path.iterdir()) == []


# Whole runs


@pytest.mark.slow
@pytest.mark.end_to_end
def test_what_began_under_torchrun_goes_on_here_bit_for_bit(tmp_path: Path) -> None:
    done = train("torchrun", tmp_path, "--strategy", "sharded_ring", "--checkpoint_every", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    facts = metadata(tmp_path)
    assert (facts["transport"], facts["n_gpus"], facts["replicas_identical"]) == ("process_group", 2, True)
    first = min((tmp_path / "run.checkpoints").glob("step-*"))  # each rank has a part of the optimizer's state in it
    resumed = made(tmp_path, "sharded_ring", "resumed", n_gpus=2, resume=str(first))
    assert resumed["transport"] == "shared_memory"
    assert resumed["parameter_hash"] == facts["parameter_hash"]


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("starter", "strategy", "message"),
    [
        pytest.param("mpi", "ring_all_reduce", "rank 2 ", marks=under_mpirun),
        ("torchrun", "param_server", r"rank      : 2 (?s:.*)exitcode  : -9"),
    ],
)
def test_when_one_rank_dies_all_end_and_it_is_named(tmp_path: Path, starter: str, strategy: str, message: str) -> None:
    done = train(starter, tmp_path, "--strategy", strategy, "--model", "tests.workload:mortal", n=3)
    assert done.returncode not in (0, None)
    assert re.search(message, done.stderr)
    assert list(tmp_path.glob("run.*")) == []


@pytest.mark.parametrize(
    ("device", "gpus", "ranks_here", "roles", "expected"),
    [
        ("cuda", 2, 2, ("worker", "worker"), True),
        ("cuda", 1, 2, ("worker", "worker"), False),  # two ranks share a GPU
        ("cuda", 2, 2, ("server", "worker"), False),
        ("cpu", 2, 2, ("worker", "worker"), False),
    ],
)
def test_nccl_is_for_ranks_with_a_gpu_each_and_no_server(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, ranks_here: int, roles: tuple[str, ...], expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    job = Job(print, len(roles), device=device, roles=roles)
    assert uses_nccl(job, ranks_here) == expected
