"""Ranks that torchrun has started: what the launcher says of itself, and that a run is the same."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from launchers import Job, find_launcher, torchrun
from launchers.environment import environment_of_others
from launchers.member import uses_nccl
from records.errors import RunFailed, UsageError
from tests.ranks import LIMIT
from tests.runs import ROOT, SMALL, command, made, metadata, small
from training.checks import resolve
from training.preflight import prepare
from transports import rendezvous
from transports.base import PeerLost, Transport
from transports.messages import WaitTimeout

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
Report = Callable[[Any], None]


def bring_all(transport: Transport, report: Report, first: str, second: str) -> tuple[Any, ...]:
    report(f"of rank {transport.rank}")
    transport.barrier()
    return transport.rank, transport.timeout, len(transport.recorder.frame()), first, second


def be_a_rank(folder: Path) -> None:
    """What each process does in the test below; it writes what it has seen."""
    rank, launcher = os.environ["RANK"], find_launcher()
    reports: list[Any] = []
    arguments = f"first of {rank}", f"second of {rank}"
    job = Job(bring_all, 2, arguments, timeout=77.0, on_report=lambda *report: reports.append(report))
    results = launcher.launch(job)
    (folder / rank).write_text(json.dumps({"results": results, "reports": reports}))


@pytest.mark.slow
def test_ranks_get_what_launch_was_told_and_the_first_process_the_results(tmp_path: Path) -> None:
    line = [sys.executable, *TORCHRUN, "2", "-m", "tests.launchers.test_torchrun", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert [one["results"] for one in seen] == [
        [[rank, 77.0, 0, "first of 0", f"second of {rank}"] for rank in range(2)],
        [],
    ]
    assert [one["reports"] for one in seen] == [[[rank, f"of rank {rank}"]] for rank in range(2)]


@pytest.fixture
def rank_1_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for name, value in (("WORLD_SIZE", "3"), ("RANK", "1"), ("LOCAL_WORLD_SIZE", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)


def test_the_local_launcher_is_the_default() -> None:
    launcher = find_launcher()
    assert (launcher.name, launcher.world_size, launcher.is_first) == ("local", None, True)


@pytest.mark.usefixtures("rank_1_of_3")
def test_torchrun_is_found_where_it_has_started_the_process() -> None:
    launcher = find_launcher()
    assert (launcher.name, launcher.world_size, launcher.is_first) == ("torchrun", 3, False)
    assert "TORCHELASTIC_RUN_ID" not in environment_of_others()
    assert find_launcher("local").name == "local", "what is named counts more than what is found"
    for options in ({"name": "dask"}, {"scheduler": "tcp://host:8786"}):
        with pytest.raises(
            UsageError, match=r"^--(launcher dask|scheduler tcp://host:8786): .* start one, with python$"
        ):
            find_launcher(**options)


@pytest.mark.usefixtures("rank_1_of_3")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WaitTimeout(1, 0.5, "'never sent'", [0]), "rank 1 waited 0.5 s for 'never sent' from rank 0: if .* --timeout"),
        (PeerLost(0, "it died", "'never sent'"), "rank 1: lost rank 0: it died .*'never sent'"),
    ],
    ids=["wait", "loss"],
)
def test_a_rank_that_waits_in_vain_fails_by_its_name(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def wait(transport: Transport) -> None:
        raise error

    transport = MagicMock(peers=[0, 2], rank=1)
    transport.__enter__.return_value, transport.__exit__.return_value = transport, None
    monkeypatch.setattr(torchrun, "set_up", lambda *_: (torch.device("cpu"), None))
    monkeypatch.setattr(rendezvous, "connect", lambda *_, **options: transport)
    tied = MagicMock()
    monkeypatch.setattr(torchrun, "die_with_parent", tied)
    with pytest.raises(RunFailed, match=f"^{message}"):
        torchrun.launch(Job(wait, 3))
    transport.__exit__.assert_called_once()
    tied.assert_called_once()


@pytest.mark.usefixtures("rank_1_of_3")
@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        ("ring_all_reduce", {"n_gpus": 4}, "--n_gpus 4: torchrun started 3 processes"),
        ("async_param_server", {"restarts": 1}, "--restarts: .* run it without torchrun"),
        ("inconsistent_reads", {}, "--strategy inconsistent_reads: .* run it without torchrun"),
        ("ring_all_reduce_builtin", {}, "starts its processes itself; run it without torchrun"),
        ("param_server_builtin", {}, "starts its processes itself; run it without torchrun"),
    ],
)
def test_what_torchrun_cannot_do_is_refused(
    tmp_path: Path, strategy: str, changes: dict[str, Any], message: str
) -> None:
    assert resolve(small(tmp_path)).n_gpus == 3
    with pytest.raises(UsageError, match=message):
        prepare(resolve(small(tmp_path, strategy, **changes)))
    assert list(tmp_path.iterdir()) == []


LOCK_STEP = ("--max_staleness", "0", "--aggregate", "2", "--momentum", "0.9")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "more", "same"),
    [
        ("param_server", (), "param_server"),
        ("ring_all_reduce", (), "ring_all_reduce"),
        ("async_param_server", LOCK_STEP, "param_server"),
    ],
)
def test_torchrun_gives_the_same_parameters(tmp_path: Path, strategy: str, more: tuple[str, ...], same: str) -> None:
    made(tmp_path, same, "here", n_gpus=3)
    arguments = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
    done = command(
        *arguments, "--strategy", strategy, *more, "--results_dir", str(tmp_path),
        module=(*TORCHRUN, "3"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    under_torchrun, here = metadata(tmp_path), metadata(tmp_path, "here")
    assert under_torchrun["transport"] == "process_group"
    assert under_torchrun["n_gpus"] == 3
    assert under_torchrun["parameter_hash"]["0"] == here["parameter_hash"]["0"]
    assert under_torchrun["replicas_identical"] or more


@pytest.mark.slow
def test_what_began_under_torchrun_goes_on_here_bit_for_bit(tmp_path: Path) -> None:
    arguments = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
    done = command(
        *arguments, "--strategy", "sharded_ring", "--checkpoint_every", "3", "--results_dir", str(tmp_path),
        module=(*TORCHRUN, "2"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = min((tmp_path / "run.checkpoints").glob("step-*"))  # each rank has a part of the optimizer's state in it
    resumed = made(tmp_path, "sharded_ring", "resumed", n_gpus=2, resume=str(first))
    assert resumed["transport"] == "shared_memory"
    assert resumed["parameter_hash"] == metadata(tmp_path)["parameter_hash"]


@pytest.mark.slow
def test_when_one_rank_dies_all_end_and_it_is_named(tmp_path: Path) -> None:
    arguments = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
    done = command(
        *arguments, "--strategy", "param_server", "--model", "tests.workload:mortal", "--results_dir", str(tmp_path),
        module=(*TORCHRUN, "3"),
    )  # fmt: skip
    assert done.returncode != 0
    assert "rank      : 2 " in done.stderr
    assert "exitcode  : -9" in done.stderr
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
    assert uses_nccl(device, ranks_here, roles) == expected


if __name__ == "__main__":
    be_a_rank(Path(sys.argv[1]))
