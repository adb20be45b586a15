"""The launchers as their contract sees them: each runs work on some ranks, and says what came of it."""

import asyncio
import gc
import importlib.util
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from gradwire.clusters.wing import find_launcher
from gradwire.core.launchers import Job, Launch
from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.launchers.fork_server import start_context
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from tests.pools import NEEDS_MPI, Pool, rank_here
from tests.ranks import LIMIT, left_in_shared_memory, virtual_time, wait_until


@dataclass
class Outcome:
    """What came of a launch. `errors`: text and exit code, by the rank that raised it; None: this process did."""

    results: list[Any] = field(default_factory=list)
    reports: list[tuple[int, Any]] = field(default_factory=list)
    errors: dict[int | None, tuple[str, int]] = field(default_factory=dict)


def perform(launch: Launch, rank: int | None, work: Callable[..., Any], n: int, *args: Any, **options: Any) -> Outcome:
    """Launch the work, and note what comes of it."""
    found = Outcome()

    def note(rank: int, value: Any) -> None:
        found.reports.append((rank, value))

    reports = {"on_report": note} if options.pop("reports", False) else {}
    try:
        found.results = launch(Job(work, n, args, **({"timeout": LIMIT} | reports | options)))
    except RunFailed as error:
        found.errors[rank] = (str(error), error.exit_code)
    except UsageError as error:
        found.errors[rank] = (str(error), 2)
    except Exception as error:
        found.errors[rank] = (one_line(error), 1)
    return found


class LauncherEngine:
    """A launcher that this process calls: local, Dask's, virtual time's."""

    is_member = False  # whether each rank calls the launcher itself, having been started before

    def __init__(self, name: str) -> None:
        self.name = name
        self.n = 3

    def launch(self, work: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        """Run `work(transport, *args)` on `n` ranks. `reports`: whether work gets a `report` too."""
        return perform(self.launcher(), None, work, self.n, *args, **options)

    def launcher(self) -> Launch:
        """Return the function under test."""
        return find_launcher("local").launch if self.name == "local" else virtual_time(self.n).run

    def belongings(self) -> set[tuple[Any, ...]]:
        """What is there that a rank could leave."""
        return belongings()

    def has_left_nothing(self, before: set[tuple[Any, ...]]) -> bool:
        """Whether, after a while, nothing is there that was not there before."""
        return wait_until(lambda: self.belongings() <= before)


class Dask(LauncherEngine):
    """Dask's, on a cluster that the tests of a process share."""

    def launcher(self) -> Launch:
        """See LauncherEngine."""
        return find_launcher("dask", dask_client().scheduler.address).launch

    def belongings(self) -> set[tuple[Any, ...]]:
        """What its workers have."""
        return {thing for worker, has in dask_client().run(of_worker).items() for thing in _each(worker, has)}


class Members(LauncherEngine):
    """Those whose ranks call the launcher themselves: torchrun, mpirun."""

    is_member = True

    def launch(self, work: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        """See LauncherEngine."""
        found = Outcome()
        for results in Pool.running(self.name).run(self.n, partial(_as_a_member, work, self.n, args, options)):
            found.results += results.results
            found.reports += results.reports
            found.errors |= results.errors
        return found

    def belongings(self) -> set[tuple[Any, ...]]:
        """What the ranks have."""
        ranks = Pool.running(self.name).run(self.n, of_process)
        return {thing for rank, has in enumerate(ranks) for thing in _each(rank, has)}


def _as_a_member(work: Callable[..., Any], n: int, args: tuple[Any, ...], options: dict[str, Any]) -> Outcome:
    launcher = find_launcher()
    rank = rank_here()
    assert (launcher.world_size, launcher.is_first) == (n, rank == 0)
    return perform(launcher.launch, rank, work, n, *args, **options)


ENGINES: dict[str, type[LauncherEngine]] = {
    "local": LauncherEngine, "virtual time": LauncherEngine, "torchrun": Members, "mpi": Members, "dask": Dask,
}  # fmt: skip
NEEDS_DASK = (
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs pip install -e '.[dask]'"),
    pytest.mark.xdist_group("dask"),
)
_MARKS = {"torchrun": (pytest.mark.xdist_group("torchrun"),), "mpi": NEEDS_MPI, "dask": NEEDS_DASK}


def params(*names: str) -> list[Any]:
    """Return launchers as parameters of a test, each marked with what it needs."""
    return [pytest.param(name, marks=_MARKS.get(name, ())) for name in names or ENGINES]


# Belongings


def belongings() -> set[tuple[str, Any]]:
    """What this process has that ranks of its own could leave."""
    gc.collect()
    this = psutil.Process()
    descriptors = [number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
    return {
        *(("process", child.pid) for child in this.children(recursive=True)),
        *(("thread", thread.ident) for thread in threading.enumerate()),
        *(("file descriptor", number) for number in descriptors),
        *(("shared memory", path.name) for path in Path("/dev/shm").glob(f"torch_{this.pid}_*")),
        *(("shared memory", name) for name in left_in_shared_memory()),
    }


def _each(owner: Any, has: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield each thing that an owner has, so that it may have fewer later: Dask frees what is done after a while."""
    for name, value in has.items():
        yield from ((owner, name, i) for i in (range(value) if isinstance(value, int) else [value]))


def of_process() -> dict[str, Any]:
    """What a process has that a rank in it could leave."""
    threads = (thread.name for thread in threading.enumerate())
    return {
        "process group": dist.is_initialized(),
        "threads": ", ".join(sorted(name for name in threads if "Dask-" not in name)),  # whose pools grow
        "servers": sum(connection.status == psutil.CONN_LISTEN for connection in psutil.Process().net_connections()),
        "children": len(psutil.Process().children()),
    }


def of_worker(dask_worker: Any) -> dict[str, Any]:
    """The same of a worker of Dask."""
    torchs = torch.get_num_threads(), torch.get_rng_state().numpy().tobytes()
    return of_process() | {"torch's": torchs, "tasks": len(dask_worker.active_threads), "data": len(dask_worker.data)}


# Dask's cluster: a scheduler and three workers, forked from the fork server of the tests

_CLUSTER = ExitStack()
_clients: list[Any] = []
QUIET: dict[str, Any] = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}


def dask_client() -> Any:
    """Return a client of the cluster, on each worker of which something has run; the tests share it."""
    if not _clients:
        import distributed

        mine, theirs = start_context().Pipe()
        _start(_be_scheduler, theirs)
        address = mine.recv()
        for _ in range(3):
            _start(_be_worker, address)
        _clients.append(client := _CLUSTER.enter_context(distributed.Client(address, set_as_default=False)))
        _CLUSTER.callback(client.shutdown)
        client.wait_for_workers(3, timeout=LIMIT)
        find_launcher("dask", address).launch(Job(lambda transport: None, 3, timeout=LIMIT))
    return _clients[0]


def _start(serve: Callable[[Any], Coroutine[Any, Any, None]], argument: Any) -> None:
    process = start_context().Process(target=_run, args=(serve, argument))
    process.start()
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined] # none of a test's own
    _CLUSTER.callback(process.join, LIMIT)


def _run(serve: Callable[[Any], Coroutine[Any, Any, None]], argument: Any) -> None:
    die_with_parent()
    logging.disable()
    asyncio.run(serve(argument))


async def _be_scheduler(pipe: Any) -> None:
    import distributed

    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
        pipe.send(scheduler.address)
        await scheduler.finished()


async def _be_worker(address: str) -> None:
    import distributed

    async with distributed.Worker(address, nthreads=1, dashboard=False) as worker:
        await worker.finished()


def end_dask() -> None:
    """End the cluster, if there is one."""
    _clients.clear()
    _CLUSTER.close()
