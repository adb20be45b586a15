"""The ranks of one run as Dask's client sees them: sent to workers, watched, their results brought home."""

import pickle
import queue
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from distributed import Client, Future
from distributed.comm import get_address_host

from launchers import dask_worker
from launchers.dask_worker import REPORTS, Place
from launchers.failures import Failure, explain
from launchers.launcher import Job
from records.errors import RunFailed, UsageError, one_line
from transports.timing import SLICE_S, RunningClock

_GRACE_S = 3.0  # how long, once a cause is known, the other ranks may say what they were waiting for
_LOOK_S = 1.0  # between two looks at the workers
_CAUSES = ("usage", "stopped", "died", "raised")  # failures that need no other to explain them


def choose_workers(client: Client, n: int, timeout: float, scheduler: str | None) -> list[str]:
    """Return the addresses of `n` workers that run tasks, those of a host side by side. Raises UsageError.

    `scheduler`: the address that the user gave; None: the workers were started for this run.
    """
    option = f"--scheduler {scheduler}" if scheduler else "--launcher dask"
    addresses = sorted(_workers(client, timeout), key=lambda one: (get_address_host(one), len(one), one))[:n]
    futures = [submit(client, one, dask_worker.introduce, scheduler is None) for one in addresses]
    processes = set()
    for address, future in zip(addresses, futures, strict=True):
        try:
            processes.add(future.result(timeout))
        except TimeoutError:
            raise UsageError(
                f"{option}: within {timeout:g} s (--timeout) its worker {address} has not taken a task: "
                "busy with something else, or stopped"
            ) from None
        except Exception as error:  # of many kinds: what is missing there, or differs
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

    # By value, and the rest as bytes: the scheduler reads what it hands on, and need not know this project.
    def call(called: bytes, *more: Any) -> Any:
        import pickle

        function, args = pickle.loads(called)
        return function(*args, *more)

    return client.submit(call, called, *futures, workers=[address], allow_other_workers=False, retries=0, pure=False)


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
            self.meeting = submit(client, addresses[0], dask_worker.Meeting, self.job.timeout)
            store = submit(client, addresses[0], attrgetter("address"), self.meeting).result(self.job.timeout)
        except (OSError, RuntimeError) as error:
            raise RunFailed(f"Dask's workers could not be sent the run: {one_line(error)}") from error
        hosts = [get_address_host(address) for address in addresses]
        for rank, address in enumerate(addresses):
            local = hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
            place = Place(self.run, rank, len(addresses), local, store)
            future = submit(client, address, dask_worker.be_rank, place, data)
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
            others = tuple(other for other in range(self.job.world_size) if other != rank)
            given_up = Failure("lost_peer", f"was given up by Dask: {one_line(error)}", ranks=others)
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
