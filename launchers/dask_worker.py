"""One rank in a worker of Dask: what surrounds its work there, and what it leaves of it, which is nothing."""

import os
import pickle
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import cloudpickle
import torch.distributed as dist
from distributed import get_worker
from distributed.comm import get_address_host

from launchers.devices import as_before, set_up
from launchers.environment import die_with_parent
from launchers.failures import Failure, do_work, failure_of
from launchers.launcher import Job
from launchers.member import uses_nccl
from records.errors import RunFailed, one_line
from transports.rendezvous import connect, serve_store

REPORTS = "reports of ranks"  # the topic of Dask's events
_one_rank = threading.Lock()  # torch.distributed is a process's, and not a thread's


@dataclass(frozen=True)
class Place:
    """A rank's number, and where it finds the others; `local`: its number among those of its host, and how many."""

    run: str
    rank: int
    world_size: int
    local: tuple[int, int]
    store: tuple[str, int]


def introduce(ends_with_parent: bool) -> tuple[str, int]:
    """Return which process this worker is; on request, end it when the process that started it ends."""
    if ends_with_parent:
        die_with_parent()
    return platform.node(), os.getpid()


class Meeting:
    """Where the ranks find each other: a store in this process for as long as the object lives, which Dask keeps."""

    def __init__(self, timeout: float) -> None:
        host = get_address_host(get_worker().address)
        self._store = serve_store(host, timeout)
        self.address = host, self._store.port


def be_rank(place: Place, job: bytes) -> bytes:
    """Run one rank; return ("result", its result) or ("failed", the Failure), pickled."""
    try:
        return cloudpickle.dumps(("result", _work(place, job)))
    except BaseException as error:  # SystemExit would end the worker
        return cloudpickle.dumps(("failed", _failure(error, place)))


def _work(place: Place, pickled: bytes) -> Any:
    report = _report(place)
    job: Job = pickle.loads(pickled)
    with _alone(job.timeout), as_before():
        host, port = place.store
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=job.timeout))
        if store.add(f"starts of rank {place.rank}", 1) > 1:
            raise RunFailed("Dask has started it a second time, and its peers are those of the first")
        meeting = store, place.rank, place.world_size
        with connect(set_up(job, place.rank, place.local), uses_nccl(job, place.local[1]), meeting) as transport:
            return do_work(job, transport, report)


def _report(place: Place) -> Callable[[Any], None]:
    """Return what a rank reports by. It raises RunFailed when the launcher no longer waits for the rank."""
    worker = get_worker()
    key = worker.get_current_task()

    def report(value: Any) -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state != "executing":  # Dask ends no thread: it only forgets the task
            raise RunFailed("the client of Dask that started the run is gone, or waits for it no longer")
        worker.log_event(REPORTS, [place.run, place.rank, cloudpickle.dumps(value)])

    return report


@contextmanager
def _alone(timeout: float) -> Iterator[None]:
    """Wait until no other rank runs in this process; leave no process group. Raises RunFailed."""
    if not _one_rank.acquire(timeout=timeout):
        raise RunFailed(f"a rank of another run has not ended within {timeout:g} s (--timeout) in the same Dask worker")
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _one_rank.release()


def _failure(error: BaseException, place: Place) -> Failure:
    """Return how this rank failed."""
    peers = tuple(peer for peer in range(place.world_size) if peer != place.rank)
    if isinstance(error, dist.DistError):
        return Failure("lost_peer", f"did not find its peers: {one_line(error)}", "its peers", peers)
    return failure_of(error, peers)
