"""Start one process per rank, watch over them, and leave nothing behind.

    results = launch(work, 4)      # work(transport) in 4 processes; what each returned, in rank order

The launcher holds one pipe from each rank (heartbeats, reports, the result) and one to each (deaths of others). A rank
that loses its launcher ends itself; a launcher that loses a rank tells the others, asks what they were waiting
for, ends them, and raises one `RunFailed` that names the rank at fault.
"""

import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.multiprocessing

from launchers.failures import Failure, explain
from launchers.rank_process import HEARTBEAT_S, rank_main
from records.errors import UsageError
from transports.pipes import RETURNED, Endpoint, spare_pipes, wire

_PIPES_OF_A_PROCESS = 230  # multiprocessing's fork server hands over fewer than 256 files at once
_GRACE_S = 3.0  # how long, after a failure, the other ranks may say what they were waiting for


def launch(
    work: Callable[..., Any],
    world_size: int,
    *args: Any,
    device: str = "cpu",
    timeout: float = 120.0,
    roles: Sequence[str] | None = None,
    record: bool = False,
    on_report: Callable[[int, Any], None] | None = None,
    expendable: Collection[int] = (),
    restarts: int = 0,
) -> list[Any]:
    """Run `work(transport, *args)` in `world_size` processes and return their results in rank order.

    `work` must be importable (defined in a module or a script, not in a function). With `on_report`, it is called as
    `work(transport, report, *args)`, and whatever a rank passes to `report` reaches `on_report(rank, value)` here.
    `timeout` (seconds) bounds every wait of a rank; `roles` name the ranks in messages; `record` keeps events.
    The death of an `expendable` rank does not end the run: its result is None, the others get PeerLost. Up to
    `restarts` times such a rank is started again; the ranks that are not expendable get PeerReturned, and may admit it.
    Raises RunFailed when a rank fails; no process outlives this call.
    """
    roles = ["worker"] * world_size if roles is None else list(roles)
    if len(roles) != world_size:
        raise ValueError(f"{len(roles)} roles for {world_size} ranks")
    _make_room_for_pipes(world_size, restarts)
    warm_up()
    job = (work, args, device, timeout, record, on_report is not None)
    ranks = _Ranks(timeout, roles, frozenset(expendable), job)
    try:
        with _interrupts_wait():
            ranks.start(restarts)
        results = ranks.results(on_report)
        ranks.end(patience=5.0)
        return results
    finally:
        ranks.end()


def start_context() -> ForkServerContext | SpawnContext:
    """Return how processes are started: by a fork server that has torch loaded already, where there is one."""
    # Elsewhere (macOS) a process that has loaded torch cannot safely be forked.
    if sys.platform != "linux" or "forkserver" not in torch.multiprocessing.get_all_start_methods():
        return torch.multiprocessing.get_context("spawn")
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "training.preload"])
    return context


def _make_room_for_pipes(world_size: int, restarts: int) -> None:
    """Have enough open files for a pipe between any two ranks. Raises UsageError."""
    if 2 * (world_size + restarts) > _PIPES_OF_A_PROCESS:
        raise UsageError(
            f"--restarts {restarts}: at most {_PIPES_OF_A_PROCESS // 2 - world_size} with so many processes"
        )
    needed = 2 * world_size * (world_size - 1) + 8 * (world_size + restarts) + 128
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UsageError(f"--n_gpus {world_size}: needs {needed} open files, but the limit is {hard}; take fewer")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def warm_up() -> None:
    """Start the fork server in the background: it loads torch while the caller does other things."""
    if start_context().get_start_method() != "forkserver":
        return
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        forkserver.ensure_running()
        return
    # Ranks inherit it: Ctrl-C reaches the whole group, but it is the launcher that ends them, with one message.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act after the block: amid it, a process may run that nobody could end yet."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    came: list[int] = []
    handlers = {n: signal.signal(n, lambda number, _: came.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for arrived in came:
        signal.raise_signal(arrived)


@dataclass
class _Ranks:
    """The processes of one run, as their launcher sees them."""

    timeout: float
    roles: list[str]
    expendable: frozenset[int]
    job: tuple[Any, ...]
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    pipes: dict[int, Connection] = field(default_factory=dict)
    notices: list[Connection] = field(default_factory=list)
    spares: list[dict[int, tuple[Connection, Connection]]] = field(default_factory=list)
    lives: dict[int, int] = field(default_factory=dict)
    inbox: "queue.SimpleQueue[tuple[int, str, Any]]" = field(default_factory=queue.SimpleQueue)
    last_heard: dict[int, float] = field(default_factory=dict)

    def start(self, restarts: int) -> None:
        """Start all ranks, and have the pipes for so many restarts."""
        context = start_context()
        endpoints, self.notices = wire(len(self.roles), context)
        hosts = set(range(len(self.roles))) - self.expendable
        self.spares = [spare_pipes(endpoints, hosts, context) for _ in range(restarts)]
        for endpoint in endpoints:
            self._start(endpoint, context)

    def _start(self, endpoint: Endpoint, context: ForkServerContext | SpawnContext) -> None:
        rank = endpoint.rank
        mine, theirs = context.Pipe(duplex=False)
        self.pipes[rank] = mine
        process = context.Process(target=rank_main, args=(endpoint, theirs, *self.job), name=f"rank {rank}")
        process.start()
        self.processes[rank] = process
        # Only the rank may hold its ends of the pipes: then their closing is its death.
        theirs.close()
        endpoint.close()
        self.last_heard[rank] = time.monotonic()
        threading.Thread(target=self._listen, args=(rank, mine), daemon=True).start()

    def _restart(self, rank: int) -> None:
        """Start a dead rank once more, and tell those who may let it in."""
        context = start_context()
        pipes = self.spares.pop(0)
        inbound, outbound = ({host: ends[i] for host, ends in pipes.items()} for i in (0, 1))
        deaths, notice = context.Pipe(duplex=False)
        self.lives[rank] = self.lives.get(rank, 0) + 1
        self.pipes[rank].close()
        self.notices[rank].close()
        self.notices[rank] = notice
        self._start(Endpoint(rank, len(self.roles), inbound, outbound, deaths, life=self.lives[rank]), context)
        self._tell([RETURNED + rank], pipes)

    def _listen(self, rank: int, pipe: Connection) -> None:
        # A thread, since a rank stopped in the middle of a message would stop whoever reads it.
        try:
            while True:
                kind, value = pickle.loads(pipe.recv_bytes())
                self.last_heard[rank] = time.monotonic()
                if kind != "alive":
                    self.inbox.put((rank, kind, value))
        except (EOFError, OSError):
            self.inbox.put((rank, "gone", None))
        except Exception as error:  # what a rank sends may be of a class that cannot be made here
            self.inbox.put((rank, "failed", Failure("raised", f"a result that cannot be unpickled: {error}")))
        self.last_heard[rank] = float("inf")  # nothing more is expected of it

    def results(self, on_report: Callable[[int, Any], None] | None) -> list[Any]:
        """Wait for every rank's result, None from an expendable one that died. Raises RunFailed."""
        results: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        dead: dict[int, Failure] = {}  # expendable ones
        give_up = float("inf")
        while len(results) + len(failures) + len(dead) < len(self.roles) and time.monotonic() < give_up:
            try:
                rank, kind, value = self.inbox.get(timeout=HEARTBEAT_S)
            except queue.Empty:
                rank, kind, value = -1, "nothing", None
            if kind == "result":
                results[rank] = value
            elif kind == "report" and on_report:
                on_report(rank, value)
            elif kind == "failed" and rank in self.expendable and value.kind == "lost_peer":
                dead.setdefault(rank, value)  # its server has ended, well or not
            elif kind == "failed":
                failures.setdefault(rank, value)
            elif kind == "gone" and rank not in {**results, **failures, **dead}:
                death = self._death_of(rank)
                (dead if rank in self.expendable else failures)[rank] = death
                if rank in dead:
                    self._tell(dead)
                if rank in dead and self.spares and not (failures or results):
                    del dead[rank]
                    with _interrupts_wait():
                        self._restart(rank)
            if not failures:
                failures.update(self._silent())
            if failures and give_up == float("inf"):
                give_up = time.monotonic() + _GRACE_S
                self._tell(failures)
        if failures:
            if all(failure.kind == "lost_peer" for failure in failures.values()):
                failures = dead | failures  # there the others' deaths are the cause
            # Whoever has not spoken since may be the one the others waited for.
            for rank in set(range(len(self.roles))) - set(results) - set(failures):
                if time.monotonic() - self.last_heard[rank] > _GRACE_S - HEARTBEAT_S:
                    failures[rank] = Failure("silent")
            raise explain(failures, self.roles, self.timeout)
        return [results.get(rank) for rank in range(len(self.roles))]

    def _death_of(self, rank: int) -> Failure:
        self.processes[rank].join(_GRACE_S)
        _remove_shared_memory(self.processes[rank])
        code = self.processes[rank].exitcode
        if code is not None and code < 0:
            return Failure("died", f"was killed by {signal.Signals(-code).name}")
        return Failure("died", f"ended with exit code {code} before its work was done")

    def _silent(self) -> dict[int, Failure]:
        now = time.monotonic()
        return {rank: Failure("silent") for rank, heard in list(self.last_heard.items()) if now - heard > self.timeout}

    def _tell(self, news: Iterable[int], ranks: Iterable[int] | None = None) -> None:
        """Write the news, one byte each, to `ranks`, by default all."""
        for rank in range(len(self.notices)) if ranks is None else ranks:
            try:
                os.write(self.notices[rank].fileno(), bytes(news))
            except OSError:
                continue  # that rank is gone itself

    def end(self, patience: float = 0.0) -> None:
        """Wait `patience` seconds for the processes to end, then end them; give the pipes back."""
        deadline = time.monotonic() + patience
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join()
            _remove_shared_memory(process)
        spares = (end for pipes in self.spares for pair in pipes.values() for end in pair)
        for connection in (*self.pipes.values(), *self.notices, *spares):
            connection.close()


def _remove_shared_memory(process: BaseProcess) -> None:
    """Remove what a process that was killed between torch's opening and unlinking of a segment has left by its name."""
    for path in Path("/dev/shm").glob(f"torch_{process.pid}_*"):
        path.unlink(missing_ok=True)
