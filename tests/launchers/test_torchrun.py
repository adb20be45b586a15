"""Ranks that torchrun has started: what the launcher says of itself, and that a run is the same."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from launchers import Job, find_launcher
from launchers.environment import environment_of_others
from launchers.member import uses_nccl
from records.errors import UsageError
from tests.pools import Pool
from tests.runs import SMALL_ARGUMENTS, command, made, metadata, small
from training.checks import resolve
from training.preflight import prepare
from transports.base import Transport

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


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
def rank_1_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for name, value in (("WORLD_SIZE", "3"), ("RANK", "1"), ("LOCAL_WORLD_SIZE", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("rank_1_of_3")
def test_torchrun_is_found_where_it_has_started_the_process() -> None:
    launcher = find_launcher()
    assert (launcher.name, launcher.world_size, launcher.is_first) == ("torchrun", 3, False)
    assert "TORCHELASTIC_RUN_ID" not in environment_of_others()
    assert find_launcher("local").name == "local", "what is named counts more than what is found"
    for options in ({"name": "dask"}, {"scheduler": "tcp://host:8786"}):
        with pytest.raises(UsageError, match=r"^--(launcher dask|scheduler tcp://\S+): .* start one, with python$"):
            find_launcher(**options)


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


@pytest.mark.slow
@pytest.mark.end_to_end
def test_what_began_under_torchrun_goes_on_here_bit_for_bit(tmp_path: Path) -> None:
    done = command(*SMALL_ARGUMENTS, "--strategy", "sharded_ring", "--checkpoint_every", "3",
                   "--results_dir", str(tmp_path), module=(*TORCHRUN, "2"))  # fmt: skip
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
def test_when_one_rank_dies_all_end_and_it_is_named(tmp_path: Path) -> None:
    done = command(*SMALL_ARGUMENTS, "--strategy", "param_server", "--model", "tests.workload:mortal",
                   "--results_dir", str(tmp_path), module=(*TORCHRUN, "3"))  # fmt: skip
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
