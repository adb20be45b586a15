"""The processes of one run as their launcher sees them: started, watched, informed of deaths, ended."""

import os
import pickle
import queue
import select
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from gradwire.core.launchers.by_value import ByValue, hidden_main
from gradwire.core.launchers.failures import Failure
from gradwire.core.launchers.fork_server import death_of_fork_server, end_fork_server, start_context, starting
from gradwire.core.launchers.launcher import Job
from gradwire.core.launchers.rank_process import HEARTBEAT_S, rank_main
from gradwire.core.transports.memory import remove_segments
from gradwire.core.transports.pipes import RETURNED, Endpoint, spare_pipes, wire
from gradwire.core.transports.timing import SLICE_S, RunningClock, now

_GRACE_S = 3.0  # how long, after a failure, the other ranks may say what they were waiting for


class Child:
    """A process that has been started, waited for and ended by itself, not by way of the fork server.

    Held by its pidfd where the system has them (Linux): a number of a process may come to mean another one. Elsewhere
    it is a child of this process, and multiprocessing waits for it.
    """

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # an old kernel, or a process that has ended and been reaped already
                self._pidfd = os.pidfd_open(self.pid)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the process to end; return whether it has ended."""
        if self._pidfd is None:
            self._process.join(seconds)
            return self._process.exitcode is not None
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(1000 * seconds))

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._pidfd is None:
            self._process.kill()
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def is_reaped(self, seconds: float) -> bool:
        """Return whether the parent process reports within `seconds` how it ended."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def how_it_ended(self, seconds: float) -> str:
        """Return how it ended; wait at most `seconds` for the report of its parent process."""
        if not self.is_reaped(seconds):
            return "ended; how is not known, since the fork server, its parent, does not answer; stopped?"
        code = self._process.exitcode
        assert code is not None
        if code == 255 and (how := death_of_fork_server()):  # multiprocessing's code if the exit code is unknown
            return f"ended with the fork server, its parent, which {how}; out of memory?"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code} before its work was done"

    def close(self) -> None:
        """Give the pidfd back."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


@dataclass
class Ranks:
    """The processes of one run, as their launcher sees them."""

    job: Job
    children: dict[int, Child] = field(default_factory=dict)
    former: list[Child] = field(default_factory=list)  # of ranks that were started again
    pipes: dict[int, Connection] = field(default_factory=dict)
    notices: list[Connection] = field(default_factory=list)
    spares: list[dict[int, tuple[Connection, Connection]]] = field(default_factory=list)
    lives: dict[int, int] = field(default_factory=dict)
    inbox: "queue.SimpleQueue[tuple[int, str, Any]]" = field(default_factory=queue.SimpleQueue)
    running: RunningClock = field(default_factory=RunningClock)
    last_heard: dict[int, float] = field(default_factory=dict)  # by that clock

    def start(self) -> None:
        """Start all ranks, and have the pipes for those that are started again."""
        context = start_context()
        with starting(self.job.timeout):
            endpoints, self.notices = wire(self.job.world_size, context)
            hosts = set(range(self.job.world_size)).difference(self.job.expendable)
            self.spares = [spare_pipes(endpoints, hosts, context) for _ in range(self.job.restarts)]
            for endpoint in endpoints:
                self._start(endpoint, context)

    def _start(self, endpoint: Endpoint, context: ForkServerContext | SpawnContext) -> None:
        rank = endpoint.rank
        mine, theirs = context.Pipe(duplex=False)
        self.pipes[rank] = mine
        main = ByValue(rank_main, (endpoint, theirs, self.job.for_rank()))
        process = context.Process(target=main, name=f"rank {rank}")
        with hidden_main():
            process.start()
        if rank in self.children:
            self.former.append(self.children[rank])
        self.children[rank] = Child(process)
        # Only the rank may hold its ends of the pipes: then their closing is its death.
        theirs.close()
        endpoint.close()
        self.last_heard[rank] = self.running()
        threading.Thread(target=self._listen, args=(rank, mine), daemon=True).start()

    def _restart(self, rank: int) -> None:
        """Start a dead rank again, and notify the ranks that may admit it."""
        context = start_context()
        pipes = self.spares.pop(0)
        inbound, outbound = ({host: ends[i] for host, ends in pipes.items()} for i in (0, 1))
        deaths, notice = context.Pipe(duplex=False)
        self.lives[rank] = self.lives.get(rank, 0) + 1
        self.pipes[rank].close()
        self.notices[rank].close()
        self.notices[rank] = notice
        self._start(Endpoint(rank, self.job.world_size, inbound, outbound, deaths, life=self.lives[rank]), context)
        self._tell([RETURNED + rank], pipes)

    def _listen(self, rank: int, pipe: Connection) -> None:
        # A thread, since a rank stopped in the middle of a message would stop its reader.
        last: tuple[str, Any] = "gone", None
        try:
            while True:
                kind, value = pickle.loads(pipe.recv_bytes())
                self.last_heard[rank] = self.running()
                if kind != "alive":
                    self.inbox.put((rank, kind, value))
        except (EOFError, OSError):
            pass  # it is gone
        except Exception as error:  # a rank may send an object of a class that cannot be made here
            last = "failed", Failure("raised", f"a result that cannot be unpickled: {error}")
        self.last_heard[rank] = float("inf")  # nothing more is expected of it, until it is started again
        self.inbox.put((rank, *last))

    def results(self) -> list[Any]:
        """Wait for every rank's result, None from an expendable one that died. Raises RunFailed."""
        on_report = self.job.on_report
        results: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        dead: dict[int, Failure] = {}  # expendable ones
        deaths: dict[int, Failure] = {}  # theirs, also of those that were started again
        give_up = float("inf")
        while len(results) + len(failures) + len(dead) < self.job.world_size and self.running() < give_up:
            try:
                rank, kind, value = self.inbox.get(timeout=SLICE_S)
            except queue.Empty:
                rank, kind, value = -1, "nothing", None
            if kind == "result":
                results[rank] = value
            elif kind == "report" and on_report:
                on_report(rank, value)
            elif kind == "failed" and rank in self.job.expendable and value.kind == "lost_peer":
                dead.setdefault(rank, value)  # its server has ended, well or not
            elif kind == "failed":
                failures.setdefault(rank, value)
            elif kind == "gone" and rank not in {**results, **failures, **dead}:
                death = self._death_of(rank)
                (dead if rank in self.job.expendable else failures)[rank] = death
                if rank in dead:
                    deaths[rank] = death
                    self._tell(dead)
                if rank in dead and self.spares and not (failures or results):
                    del dead[rank]
                    with starting(self.job.timeout):
                        self._restart(rank)
            if not failures:
                failures.update(self._silent())
            if failures and give_up == float("inf"):
                give_up = self.running() + _GRACE_S
                self._tell(failures)
        if failures:
            # The others may have waited for a rank that has sent nothing since.
            for rank in set(range(self.job.world_size)) - set(results) - set(failures) - set(dead):
                silent = self.running() - self.last_heard[rank] > _GRACE_S - HEARTBEAT_S
                failures[rank] = Failure("silent" if silent else "busy")
            from gradwire.core.launchers.explanation import explain

            raise explain(failures, self.job.roles, self.job.timeout, deaths)
        return [results.get(rank) for rank in range(self.job.world_size)]

    def _death_of(self, rank: int) -> Failure:
        child = self.children[rank]
        child.wait(_GRACE_S)
        remove_segments(child.pid)
        return Failure("died", child.how_it_ended(_GRACE_S))

    def _silent(self) -> dict[int, Failure]:
        at = self.running()
        return {rank: Failure("silent") for rank, last in list(self.last_heard.items()) if at - last > self.job.timeout}

    def _tell(self, news: Iterable[int], ranks: Iterable[int] | None = None) -> None:
        """Write the news, one byte each, to `ranks`, by default all."""
        for rank in range(len(self.notices)) if ranks is None else ranks:
            with suppress(OSError):  # that rank is gone itself
                os.write(self.notices[rank].fileno(), bytes(news))

    def end(self, patience: float = 0.0) -> None:
        """Wait `patience` seconds for the processes to end, then end them; give the pipes back."""
        deadline = now() + patience
        children = [*self.children.values(), *self.former]
        for child in children:
            child.wait(max(0.0, deadline - now()))
        for child in children:
            child.kill()
        for child in children:
            child.wait(_GRACE_S)
            remove_segments(child.pid)
            if not child.is_reaped(_GRACE_S):
                end_fork_server()  # which, stopped, would be waited for at the end of this process
                child.is_reaped(_GRACE_S)
            child.close()
        self.children, self.former = {}, []
        spares = (end for pipes in self.spares for pair in pipes.values() for end in pair)
        for connection in (*self.pipes.values(), *self.notices, *spares):
            connection.close()
