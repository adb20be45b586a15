"""The cluster of a simulation: what its options mean, what is wrong with them, and how long a step takes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradwire.compression.topk import TopK
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import prepare, resolve
from gradwire.core.workloads import datasets
from gradwire.core.workloads.datasets import Data
from gradwire.networks.units import PAYLOAD
from gradwire.options import Options
from gradwire.virtual_time import calibration
from gradwire.virtual_time import cluster as clusters
from gradwire.virtual_time.calibration import count_flops
from gradwire.virtual_time.cluster import ClusterOptions, Compute, check_memory, phase_seconds
from gradwire.virtual_time.launcher import Death
from gradwire.virtual_time.network import OneSwitch, Racks
from strategies import DGS, AsyncParamServer, BackupWorkers, ParamServer, RingAllReduce
from tests.runs import small

ROLES = ["server", "worker", "worker", "worker"]


def test_a_network_is_what_its_options_say() -> None:
    options = resolve(Options(n_gpus=4, bandwidth="1gbit", latency="50us"))
    network = ClusterOptions().make_network(options)
    assert isinstance(network, OneSwitch)
    assert (network.world_size, network.bandwidth, network.latency) == (4, 125e6 * PAYLOAD, pytest.approx(50e-6))
    assert network.overhead == 0
    assert ClusterOptions(overhead="2us").make_network(options).overhead == pytest.approx(2e-6)
    racks = ClusterOptions(racks=2).make_network(options)
    assert isinstance(racks, Racks)
    assert (racks.racks, racks.rack_bandwidth) == (2, 125e6 * PAYLOAD)
    racks = ClusterOptions(racks=2, rack_bandwidth="10gbit").make_network(options)
    assert isinstance(racks, Racks)
    assert racks.rack_bandwidth == 1.25e9 * PAYLOAD


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"racks": 5}, "--racks 5: must be from 1 to the number of ranks, 4"),
        ({"rack_bandwidth": "1gbit"}, "--rack_bandwidth: one rack has no uplink"),
        ({"overhead": "2"}, "--overhead 2: write a time"),
        ({"compute": "30"}, "--compute 30: write a time"),
        ({"compute": "30ms", "flops": 1e9}, "--compute and --flops: each says"),
        ({"flops": -1.0}, "--flops -1.0: must be from 1 to 1e30"),
        ({"cores": 0}, "--cores 0: must be from 1 to"),
        ({"copying": "1GB/s"}, "--copying: a part of --cores"),
        ({"cores": 2, "kill": ("3@1s",)}, "--kill: the cores of --cores do not notice a death"),
        ({"kill": ("3",)}, "--kill 3: must be RANK@TIME"),
        ({"kill": ("0@1s",)}, "--kill 0@1s: rank 0 is no worker"),
        ({"kill": ("9" * 5000 + "@1s",)}, "--kill 99999"),
        ({"kill": ("3@2s-1s",)}, "--kill 3@2s-1s: it comes back before it dies"),
        ({"kill": ("3@1s", "3@2s")}, "--kill 3@2s: rank 3 is given twice"),
    ],
)
def test_what_is_wrong_is_one_line(options: dict[str, Any], message: str) -> None:
    cluster = ClusterOptions(**options)
    with pytest.raises(UsageError, match=rf"^{re.escape(message)}.*\Z"):  # noqa: PT012 - any of the three may refuse
        cluster.check_compute()
        cluster.make_network(resolve(Options(n_gpus=4, bandwidth="10gbit")))
        cluster.deaths(AsyncParamServer(), ROLES)


def test_only_a_strategy_that_can_lose_workers_loses_them() -> None:
    with pytest.raises(
        UsageError,
        match=r"--kill: ring_all_reduce cannot lose a worker; backup_workers, .* ad_psgd can$",
    ):
        ClusterOptions(kill=("1@1s",)).deaths(RingAllReduce(), ["worker"] * 4)
    assert ClusterOptions(kill=("1@1s",)).deaths(BackupWorkers(), ROLES) == [Death(1, 1.0)]
    kill = ("3@1.5s", "1@20ms-30ms")
    assert ClusterOptions(kill=kill).deaths(AsyncParamServer(), ROLES) == [Death(3, 1.5), Death(1, 0.02, 0.03)]
    with pytest.raises(UsageError, match="--kill 1@1s-2s: backup_workers lets no worker in again"):
        ClusterOptions(kill=("1@1s-2s",)).deaths(BackupWorkers(), ROLES)


# How long a step takes


def case(folder: Path, **changes: Any) -> tuple[Options, Data]:
    options = resolve(small(folder, "ring_all_reduce", n_gpus=2, **changes))
    return options, datasets.load(options)


def test_the_time_of_the_passes_is_given_or_that_of_their_operations(tmp_path: Path) -> None:
    options, data = case(tmp_path)
    phases = phase_seconds(ClusterOptions(compute="30ms"), options, data)
    assert phases == {"forward": pytest.approx(0.01), "backward": pytest.approx(0.02)}
    flops = count_flops(options, data)
    assert flops["forward"] == 2 * 16 * 2 * 2, "16 samples, 2 inputs, 2 classes, a multiplication and an addition"
    phases = phase_seconds(ClusterOptions(flops=1e6), options, data)
    assert phases == {name: pytest.approx(count / 1e6) for name, count in flops.items()}


def test_phases_are_timed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, data = case(tmp_path)
    phases = phase_seconds(ClusterOptions(), options, data)
    assert set(phases) == {"data", "forward", "backward", "update"}
    assert min(phases.values()) > 0
    monkeypatch.setattr(calibration, "time_phases", lambda *_: {"forward": 1.0})
    assert phase_seconds(ClusterOptions(), options, data) == phases
    other, other_data = case(tmp_path, batch_size=8)
    assert phase_seconds(ClusterOptions(), other, other_data) == {"forward": 1.0}, "of another batch, timed itself"
    path = tmp_path / "calibration.json"
    first, _ = json.loads(path.read_text())
    for content in ("", "[]", "{", json.dumps({first: 1}), "null", "5"):
        path.write_text(content)
        with pytest.raises(UsageError, match=r"calibration.json holds no calibration.*; delete it$"):
            phase_seconds(ClusterOptions(), options, data)


def test_a_slow_rank_takes_longer_for_its_passes_only(tmp_path: Path) -> None:
    options, _ = case(tmp_path, slow=("1:5",))
    compute = Compute(options, {"forward": 1.0, "update": 1.0})
    assert [compute(rank, "forward", 1.0) for rank in (0, 1)] == [1.0, 5.0]
    assert [compute(1, "update", 0.5), compute(1, "wait", 1.0)] == [0.5, 0.0]


def test_each_pass_has_a_jitter_of_its_own_in_however_many_parts_it_is_spent(tmp_path: Path) -> None:
    options = small(tmp_path, n_gpus=2, jitter=0.5)
    whole, in_parts = (Compute(options, {"backward": 1.0}) for _ in range(2))
    passes = [whole(0, "backward", 1.0) for _ in range(5)]
    assert len(set(passes)) == 5
    assert min(passes) >= 1
    assert [sum(in_parts(0, "backward", 0.25) for _ in range(4)) for _ in range(5)] == pytest.approx(passes)
    assert whole(1, "backward", 1.0) not in passes, "of another rank"


def test_more_ranks_than_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, data = case(tmp_path)
    check_memory(options, data)
    monkeypatch.setattr(clusters, "free_memory", lambda: 2 * 100_048)
    check_memory(options)
    with pytest.raises(UsageError, match=r"--n_gpus 2: needs about .* GB of memory, and 0.0 GB are free"):
        check_memory(options, data)


@pytest.mark.parametrize("chosen", [{"codec": TopK()}, {"strategy": DGS()}], ids=["codec", "strategy"])
def test_coding_is_timed_also_of_a_model_with_unused_parameters(tmp_path: Path, chosen: dict[str, Any]) -> None:
    given: dict[str, Any] = {"strategy": ParamServer(), "n_gpus": 3, "model": "tests.workload:partly_used"}
    given |= chosen
    options = resolve(small(tmp_path, given.pop("strategy"), **given))
    data = prepare(options)
    phases = phase_seconds(ClusterOptions(), options, data)
    assert set(phases) == {"data", "forward", "backward", "update", "encode", "decode"}
    assert min(phases["encode"], phases["decode"]) > 0
