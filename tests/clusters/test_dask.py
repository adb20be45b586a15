"""Dask places the ranks: what its launcher alone promises, on workers of its own and on those of a cluster.

Above each test stands what its ranks run.
"""

import io
import os
import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any
from unittest.mock import MagicMock

import cloudpickle
import psutil
import pytest
import torch

from gradwire.clusters import dask
from gradwire.clusters.rendezvous import serve_store
from gradwire.clusters.wing import find_launcher
from gradwire.core.launchers import Job
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.transports.base import Transport
from tests.core.launchers.engines import QUIET, dask_client, of_worker
from tests.core.launchers.test_failures import Start
from tests.ranks import LIMIT, wait_until

distributed = pytest.importorskip("distributed", reason="needs dask.distributed: pip install -e '.[dask]'")
pytestmark = pytest.mark.xdist_group("dask")
Report = Callable[[Any], None]
N = 3


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A client of the tests' cluster, looked at before and after: no rank may leave anything in a worker."""
    client = dask_client()
    assert wait_until(lambda: not any(state["data"] or state["tasks"] for state in client.run(of_worker).values()))
    before = client.run(of_worker)
    yield client
    assert wait_until(lambda: client.run(of_worker) == before), (before, client.run(of_worker))


def run(client: Any, work: Callable[..., Any], *args: Any, world_size: int = N, **options: Any) -> list[Any]:
    options = {"timeout": LIMIT} | options
    return find_launcher("dask", client.scheduler.address).launch(Job(work, world_size, args, **options))


def get_rank(transport: Transport) -> int:
    return transport.rank


def bring_much(transport: Transport, report: Report) -> torch.Tensor:
    report(distributed.get_worker().scheduler.address)
    report(bytes(10_000_000))
    return torch.full((1_000_000,), transport.rank)


@pytest.mark.slow
def test_on_workers_of_its_own_which_end_with_the_run() -> None:
    environment, children = dict(os.environ), psutil.Process().children(recursive=True)
    reports = []

    def hear(rank: int, value: Any) -> None:
        if isinstance(value, bytes):
            reports.append((rank, len(value)))
            return
        assert value.startswith("tls://127.0.0.1:")
        if rank == 0:
            return
        with pytest.raises(OSError, match=r"(?i)timed out|closed"):  # who has no keys can have nothing run there
            distributed.Client(value.replace("tls", "tcp"), timeout=1, set_as_default=False)

    results = dask.launch(Job(bring_much, 2, timeout=LIMIT, on_report=hear))
    assert [(len(result), result.unique().tolist()) for result in results] == [(1_000_000, [rank]) for rank in range(2)]
    assert sorted(reports) == [(0, 10_000_000), (1, 10_000_000)]
    assert environment == dict(os.environ)
    assert psutil.Process().children(recursive=True) == children


def test_on_fewer_ranks_than_workers_which_get_their_random_state_and_their_threads_back(cluster: Any) -> None:
    assert run(cluster, get_rank, world_size=N - 1, seed=5) == [0, 1]  # the states are looked at by the fixture


# Whole runs: that they end as on shared memory is in `test_every_strategy.py`


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_killed_worker_ends_the_run_by_name(start: Start) -> None:
    victim = start("ring_all_reduce", "--launcher", "dask")
    victim.wait_until("training")[1].kill()
    assert re.match(r"error: rank \d \(worker\) has ended: its Dask worker \S+ is gone", victim.check_end())
    assert victim.process.returncode == 1

    # That no rank is left is looked at by the fixture.


# Failures


def wait_for(event: str) -> None:
    distributed.Event(event).wait(LIMIT)


def wait_for_one_that_hangs(transport: Transport) -> None:
    if transport.rank == 2:
        wait_for("the end of the test")
    transport.recv(2, "never sent")


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.clusters.dask_ranks._GRACE_S", 0.5)
    try:
        with pytest.raises(RunFailed, match=r"^rank 2 \(worker\) has not answered for more than 2 s") as failed:
            run(cluster, wait_for_one_that_hangs, timeout=2.0)
        assert str(failed.value).count("waited for 'never sent' from rank 2") == 2
    finally:
        distributed.Event("the end of the test", client=cluster).set()


def test_a_rank_is_not_run_twice(cluster: Any) -> None:
    from gradwire.clusters.dask_ranks import Meeting, Place, be_rank, submit

    address = min(cluster.nthreads())
    meeting = submit(cluster, address, Meeting, LIMIT)
    store = submit(cluster, address, attrgetter("address"), meeting).result(LIMIT)
    job = cloudpickle.dumps(Job(get_rank, 1, timeout=LIMIT))
    arguments = Place("a run", 0, 1, (0, 1), store), job
    first, second = (pickle.loads(submit(cluster, address, be_rank, *arguments).result(LIMIT)) for _ in range(2))
    assert first == ("result", 0)
    assert (second[0], second[1].kind) == ("failed", "stopped")
    assert "a second time" in second[1].message


def test_the_store_listens_on_the_address_that_it_is_told() -> None:
    store = serve_store("127.0.0.1", LIMIT)
    listening = [
        connection.laddr for connection in psutil.Process().net_connections() if connection.status == psutil.CONN_LISTEN
    ]
    assert [address.ip for address in listening if address.port == store.port] == ["127.0.0.1"]


class SchedulerElsewhere(pickle.Unpickler):
    """Reads what Dask's scheduler reads, where there is no project."""

    def find_class(self, module: str, name: str) -> Any:
        assert module.split(".")[0] not in ("gradwire", "strategies", "tests"), f"{module}.{name}"
        return super().find_class(module, name)


def test_the_scheduler_need_not_know_the_project() -> None:
    from gradwire.clusters.dask_ranks import Place, be_rank, submit

    client, place = MagicMock(), Place("a run", 0, 1, (0, 1), ("host", 1))
    submit(client, "tcp://host:1", be_rank, place, b"job")
    call, *arguments = SchedulerElsewhere(io.BytesIO(cloudpickle.dumps(client.submit.call_args.args))).load()
    assert callable(call)
    assert [type(argument) for argument in arguments] == [bytes]


# What is refused


def test_a_worker_that_is_busy(cluster: Any) -> None:
    address = min(cluster.nthreads())
    busy = cluster.submit(wait_for, "test over", workers=[address], pure=False)
    assert wait_until(lambda: any(cluster.processing().values()))
    with pytest.raises(UsageError, match=rf"within 1 s \(--timeout\) its worker {address} has not taken a task"):
        run(cluster, get_rank, timeout=1.0)
    distributed.Event("test over", client=cluster).set()
    busy.result(LIMIT)


def test_workers_that_cannot_import_the_project() -> None:
    from gradwire.clusters.dask_ranks import choose_workers

    client = MagicMock()
    client.nthreads.return_value = {"tcp://host:1": 1}
    client.submit.return_value.result.side_effect = ModuleNotFoundError("No module named 'launchers'")
    with pytest.raises(UsageError, match=r"cannot run this project \(ModuleNotFoundError: .*; start it in"):
        choose_workers(client, 1, LIMIT, "tcp://host:8786")


def test_workers_that_are_too_few_or_share_a_process() -> None:
    job = Job(get_rank, 2, timeout=LIMIT)
    with distributed.LocalCluster(n_workers=2, processes=False, protocol="tcp", **QUIET) as threads:
        wanted = r"--n_gpus 2: .* has 1; start more: python -m dask worker .* --nworkers 1$"
        with pytest.raises(UsageError, match=wanted):
            dask.launch(job, scheduler=threads.scheduler_address)


@pytest.mark.parametrize(
    ("address", "missing", "told"),
    [
        ("nowhere", "", "--scheduler nowhere: .*; give the address .* such as tcp://host:8786"),
        ("tcp://host:port", "", "--scheduler tcp://host:port: .*; give the address .* such as tcp://host:8786"),
        ("tls://host:8786", "", r"--scheduler tls://host:8786: Dask has no certificates here; .*comm\.tls"),
        (None, "distributed", r"--launcher dask: .*pip install -e '\.\[dask\]'"),
        (None, "cryptography", r"--launcher dask: .*pip install -e '\.\[dask\]'"),
    ],
)
def test_what_cannot_be_found(monkeypatch: pytest.MonkeyPatch, address: str | None, missing: str, told: str) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=f"^{told}"):
        find_launcher("dask", address)


def test_what_cannot_be_launched() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"^--scheduler {address}: no Dask scheduler has answered within 0.5 s"):
            dask.launch(Job(get_rank, 2, timeout=0.5), scheduler=address)
    with pytest.raises(UsageError, match="--restarts 1: Dask starts no rank again"):
        dask.launch(Job(get_rank, 2, restarts=1))
