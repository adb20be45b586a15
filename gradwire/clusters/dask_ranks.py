"""The ranks of one run in Dask: sent to workers, watched and brought home by its client; and one rank in its worker.

Of what surrounds the work of a rank, nothing is left in the worker.
"""

import os
import pickle
import platform
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import Any

import cloudpickle
import torch.distributed as dist
from distributed import Client, Future, get_worker
from distributed.comm import get_address_host

from gradwire.clusters.member import uses_nccl
from gradwire.clusters.rendezvous import connect, serve_store
from gradwire.core.launchers.devices import as_before, set_up
from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.launchers.explanation import explain
from gradwire.core.launchers.failures import Failure, do_work, failure_of
from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.transports.timing import SLICE_S, RunningClock

REPORTS = "reports of ranks"  # the topic of Dask's events
_one_rank = threading.Lock()  # torch.distributed is a process's, and not a thread's
_GRACE_S = 3.0  # how long, once a cause is known, the other ranks may say what they were waiting for
_LOOK_S = 1.0  # between two looks at the workers
_CAUSES = ("usage", "stopped", "died", "raised")  # failures that need no other to explain them


def choose_workers(client: Client, n: int, timeout: float, scheduler: str | None) -> list[str]:
    """Return the addresses of `n` workers that run tasks, those of a host side by side. Raises UsageError.

    `scheduler`: the address that the user gave; None: the workers were started for this run.
    """
    option = f"--scheduler {scheduler}" if scheduler else "--launcher dask"
    addresses = sorted(_workers(client, timeout), key=lambda name: (get_address_host(name), len(name), name))[:n]
    futures = [submit(client, address, introduce, scheduler is None) for address in addresses]
    processes = set()
    for address, future in zip(addresses, futures, strict=True):
        try:
            processes.add(future.result(timeout))
        except TimeoutError:
            raise UsageError(
                f"{option}: within {timeout:g} s (--timeout) its worker {address} has not taken a task: "
                "busy with something else, or stopped"
            ) from None
        except Exception as error:  # of many kinds: a missing module there, or another version
            raise UsageError(
                f"{option}: its worker {address} cannot run this project ({one_line(error)}); "
                f"start it in the project's folder, with the same packages: python -m dask worker {scheduler}"
            ) from error
    if len(processes) < n:
        raise UsageError(
            f"--n_gpus {n}: each rank needs a Dask worker with a process of its own, and {option} has "
            f"{len(processes)}; start more: python -m dask worker {scheduler} --nworkers {n - len(processes)}"
        )
    return addresses


def _workers(client: Client, timeout: float) -> list[str]:
    """Return the addresses of the workers that the scheduler knows at this moment. Raises RunFailed."""
    try:
        return list(client.nthreads(callback_timeout=timeout))
    except OSError as error:
        raise RunFailed(f"Dask's scheduler is gone, or does not answer: {one_line(error)}") from error


def submit(client: Client, address: str, function: Callable[..., Any], *args: Any) -> Future:
    """Call a function on one worker; it gets the results of the futures, the last of `args`."""
    futures = [arg for arg in args if isinstance(arg, Future)]
    called = pickle.dumps((function, args[: len(args) - len(futures)]))

    # By value, and the rest as bytes: the scheduler reads messages that it hands on, and need not know this project.
    def call(called: bytes, *more: Any) -> Any:
        import pickle

        function, args = pickle.loads(called)
        return function(*args, *more)

    return client.submit(call, called, *futures, workers=[address], allow_other_workers=False, retries=0, pure=False)


@dataclass(frozen=True)
class Place:
    """A rank's number, and where it finds the others; `local`: its number among those of its host, and how many."""

    run: str
    rank: int
    world_size: int
    local: tuple[int, int]
    store: tuple[str, int]


@dataclass
class Ranks:
    """The ranks of one run on these workers of Dask, in rank order."""

    client: Client
    addresses: list[str]
    job: Job
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    meeting: Future | None = None  # Dask keeps its result as long as somebody holds this
    futures: list[Future] = field(default_factory=list)
    inbox: "queue.SimpleQueue[tuple[int, str, Any]]" = field(default_factory=queue.SimpleQueue)
    running: RunningClock = field(default_factory=RunningClock)

    def start(self, sent: bytes) -> None:
        """Send the job to the workers, and have each be a rank. Raises RunFailed."""
        client, addresses = self.client, self.addresses
        client.subscribe_topic(REPORTS, self._hear)
        try:
            # A copy for each, so that none depends on the life of another.
            data = client.scatter(sent, workers=addresses, broadcast=True, hash=False, timeout=self.job.timeout)
            self.meeting = submit(client, addresses[0], Meeting, self.job.timeout)
            store = submit(client, addresses[0], attrgetter("address"), self.meeting).result(self.job.timeout)
        except (OSError, RuntimeError) as error:
            raise RunFailed(f"Dask's workers could not be sent the run: {one_line(error)}") from error
        hosts = [get_address_host(address) for address in addresses]
        for rank, address in enumerate(addresses):
            local = hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
            place = Place(self.run, rank, len(addresses), local, store)
            future = submit(client, address, be_rank, place, data)
            future.add_done_callback(lambda future, rank=rank: self.inbox.put((rank, "done", future)))
            self.futures.append(future)

    def _hear(self, event: tuple[float, Any]) -> None:
        run, rank, value = event[1]
        if run == self.run:
            self.inbox.put((rank, "report", value))

    def results(self) -> list[Any]:
        """Wait for every rank's result. Raises RunFailed."""
        results: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        give_up, look = float("inf"), 0.0
        while len(results) + len(failures) < self.job.world_size and self.running() < give_up:
            if self.running() >= look:
                look = self.running() + _LOOK_S
                failures = {rank: death for rank, death in self._deaths().items() if rank not in results} | failures
            try:
                rank, kind, value = self.inbox.get(timeout=SLICE_S)
            except queue.Empty:
                rank, kind, value = -1, "nothing", None
            if kind == "report" and self.job.on_report:
                self.job.on_report(rank, pickle.loads(value))
            elif kind == "done" and rank not in failures:
                kind, value = self._outcome(rank, value)
                (results if kind == "result" else failures)[rank] = value
            if failures:
                known = any(failure.kind in _CAUSES for failure in failures.values())
                give_up = min(give_up, self.running() + _GRACE_S + (0 if known else self.job.timeout))
        if failures:
            silent = {rank: Failure("silent") for rank in range(self.job.world_size) if rank not in results}
            raise explain(silent | failures, self.job.roles, self.job.timeout)
        return [results[rank] for rank in range(self.job.world_size)]

    def _outcome(self, rank: int, future: Future) -> tuple[str, Any]:
        """Return ("result", what the rank returned) or ("failed", its Failure)."""
        try:
            data = future.result(self.job.timeout)
        except Exception as error:  # which Dask raises, since a rank catches its own
            ranks = tuple(range(self.job.world_size))
            given_up = Failure("lost_peer", f"was given up by Dask: {one_line(error)}", ranks=ranks)
            return "failed", self._deaths().get(rank, given_up)
        try:
            kind, value = pickle.loads(data)
        except Exception as error:  # it may be of a class that cannot be made here
            return "failed", Failure("raised", f"a result that cannot be unpickled: {one_line(error)}")
        return kind, value

    def _deaths(self) -> dict[int, Failure]:
        """Return the failures of the ranks whose workers the scheduler has lost."""
        alive = set(_workers(self.client, self.job.timeout))
        return {
            rank: Failure("died", f"has ended: its Dask worker {address} is gone")
            for rank, address in enumerate(self.addresses)
            if address not in alive
        }


# In a worker


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
        ranks = range(place.world_size)
        failure = failure_of(error, ranks)
        if isinstance(error, dist.DistError):
            failure = Failure("lost_peer", f"did not find its peers: {one_line(error)}", "its peers", tuple(ranks))
        return cloudpickle.dumps(("failed", failure))


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
    """Return a rank's function for reports. It raises RunFailed when the launcher no longer waits for the rank."""
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
