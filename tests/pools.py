"""Rank processes that outlive a test, since starting them takes longest: a pytest process keeps them.

They wait for jobs on a socket, in which they use no core, and end when its other end is gone, for whatever reason. The
fork server of the tests starts them, so that they have loaded all they need: also torchrun, which forks its ranks. What
mpirun starts is a stand-in for each rank: it gives its environment away, by which a forked process is the rank.
"""

import importlib.util
import multiprocessing
import os
import pickle
import select
import shutil
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from gradwire.core.launchers.by_value import ByValue
from gradwire.core.launchers.fork_server import start_context
from gradwire.core.transports.pipes import Endpoint
from gradwire.networks.link import Link
from tests.engines import LIMIT, Engine

ROOT = Path(__file__).resolve().parent.parent
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # for mpirun, in a container
ENVIRONMENT = {**AS_ROOT, "OMP_NUM_THREADS": "1"}
MISSING = [
    what
    for what, found in (("mpi4py", importlib.util.find_spec("mpi4py")), ("mpirun", shutil.which("mpirun")))
    if not found
]
NEEDS_MPI = (
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install -e '.[mpi]'"),
    pytest.mark.xdist_group("mpi"),  # so that one process has the ranks
)
SIZES = {"processes": 4, "torchrun": 3, "mpi": 3}


def mpirun(n: int, *command: str) -> list[str]:
    """Return the command that starts `n` ranks, though there may be fewer cores."""
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n), sys.executable, *command]


class MpiRanks(Engine):
    """Ranks on `gradwire.clusters.mpi`. When one of them dies, mpirun ends all."""

    def __init__(self, link: Link | None = None) -> None:
        self._link = link

    def run(self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
        """See Engine."""
        return Pool.running("mpi").run(world_size, partial(_on_mpi, check, world_size, args, record, self._link))


class Pool:
    """The ranks that one program has started, from this process's point of view."""

    _running: "dict[str, Pool]" = {}

    @classmethod
    def running(cls, name: str) -> "Pool":
        """Return this process's pool of `processes`, `torchrun` or `mpi`, started if need be."""
        if name not in cls._running:
            cls._running[name] = cls(name)
        return cls._running[name]

    @classmethod
    def end_all(cls) -> None:
        """End the pools of this process."""
        while cls._running:
            cls._running.popitem()[1]._end()

    def __init__(self, name: str) -> None:
        self._name, size = name, SIZES[name]
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            address, output = str(Path(folder, "socket")), Path(folder, "output")
            listener.bind(address)
            listener.listen(size)
            listener.settimeout(LIMIT)
            self._output = output.open("w+")
            self._processes: list[BaseProcess] = []

            def start(work: Callable[..., Any], *args: Any) -> None:
                process = start_context().Process(target=_begin, args=(str(output), work, *args))
                process.start()
                multiprocessing.process._children.discard(process)  # type: ignore[attr-defined] # none of a test's own
                self._processes.append(process)

            def accept() -> Connection:
                return Connection(listener.accept()[0].detach())

            try:
                if name == "mpi":
                    start(_mpirun, address)
                    for stand_in in [accept() for _ in range(size)]:
                        start(_serve_with, stand_in.recv(), stand_in, address)
                        stand_in.close()  # only the rank holds it: with the rank, its stand-in ends
                elif name == "torchrun":
                    start(_torchrun, address)
                else:
                    for rank in range(size):
                        start(_serve_with, {"RANK": str(rank)}, None, address)
                connections = [accept() for _ in range(size)]
            except TimeoutError:
                raise self._broken(f"the ranks of {name} were not there within {LIMIT:g} s") from None
        self._ranks = {connection.recv(): connection for connection in connections}

    def run(
        self, world_size: int, job: Callable[..., Any], limit: float = 2 * LIMIT, endpoints: Sequence[Endpoint] = ()
    ) -> list[Any]:
        """Call `job()` in the first `world_size` ranks, or `job(endpoint)` with that of each; return the results.

        The endpoints are closed here. Raises RuntimeError if a rank fails.
        """
        waiting = {self._ranks[rank]: rank for rank in range(world_size)}
        try:
            for connection, rank in waiting.items():
                connection.send(ByValue(job, (*endpoints[rank : rank + 1],)))
            for endpoint in endpoints:
                endpoint.close()  # only the ranks may hold them: then their closing is seen
            answers: dict[int, tuple[bool, Any]] = {}
            while waiting:
                ready = wait(list(waiting), limit)
                if not ready:
                    raise self._broken(f"no answer from rank {', '.join(map(str, waiting.values()))}")
                for answering in ready:
                    assert isinstance(answering, Connection)
                    answers[waiting[answering]] = pickle.loads(answering.recv_bytes())
                    del waiting[answering]
        except (EOFError, OSError) as error:
            raise self._broken(f"{self._name} has ended its ranks ({error!r})") from error
        if failed := [f"rank {rank} failed:\n{answers[rank][1]}" for rank in sorted(answers) if not answers[rank][0]]:
            raise RuntimeError("\n".join(failed))
        return [answers[rank][1] for rank in range(world_size)]

    def _broken(self, why: str) -> RuntimeError:
        """End everything, so that the next test starts afresh; return what is to be raised."""
        Pool._running.pop(self._name, None)
        for process in self._processes:
            process.kill()
            process.join(LIMIT)
        self._output.seek(0)
        return RuntimeError(f"{why}; its output: {self._output.read()[-2000:]}")

    def _end(self) -> None:
        for connection in self._ranks.values():
            connection.send_bytes(b"")
        for process in self._processes:
            process.join(LIMIT)
            process.kill()
        for connection in self._ranks.values():
            connection.close()


# What follows runs in other processes


def _begin(output: str, work: Callable[..., Any], *args: Any) -> None:
    """Do the work; what it prints goes to a file."""
    os.chdir(ROOT)
    with open(output, "a") as file, open(os.devnull) as nothing:
        for number, to in enumerate((nothing, file, file)):
            os.dup2(to.fileno(), number)
    work(*args)


def _torchrun(address: str) -> None:
    from torch.distributed.run import main

    how = ["--standalone", "--nproc-per-node", str(SIZES["torchrun"]), "--start-method", "fork", "--run-path"]
    main([*how, __file__, address])


_STAND_IN = """
import os, sys
from multiprocessing.connection import Client
rank = Client(sys.argv[1])
rank.send(dict(os.environ))
rank.poll(None)
"""


def _mpirun(address: str) -> None:
    os.environ.update(ENVIRONMENT)
    os.execvp("mpirun", mpirun(SIZES["mpi"], "-S", "-c", _STAND_IN, address))


def _serve_with(environment: dict[str, str], stand_in: Connection | None, address: str) -> None:
    """Be a rank in this environment. Its `stand_in` lives as long as this process."""
    os.environ.update(environment)
    serve(address)


def serve(address: str) -> None:
    """Do jobs until there are no more."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from mpi4py import MPI  # noqa: F401 - begun by all ranks at once, since it waits for all of them
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        connection = Connection(end.detach())
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    connection.send(rank_here())
    while job := connection.recv_bytes():
        try:
            answer = cloudpickle.dumps((True, pickle.loads(job)()))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        if not dist.is_initialized():  # who failed to make a group has counted it, and would not meet the others
            dist.distributed_c10d._world.group_count = 0
        connection.send_bytes(answer)


def rank_here() -> int:
    """Return the rank of this process, which mpirun or torchrun has started."""
    return int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])


def _on_mpi(check: Callable[..., Any], world_size: int, args: tuple[Any, ...], record: bool, link: Link | None) -> Any:
    """Do a check on a communicator of its own."""
    import torch
    from mpi4py import MPI

    from gradwire.clusters.mpi import Mpi
    from gradwire.core.records.recorder import Recorder
    from gradwire.core.transports.messages import Setup

    world = MPI.COMM_WORLD
    # Never freed: a rank may close before a peer, whose last words must not turn up in the next communicator.
    comm = world.Create_group(world.group.Incl(range(world_size)))
    with Mpi(Setup(torch.device("cpu"), LIMIT, Recorder(comm.rank, record), link), comm) as transport:
        transport.align_clocks()
        return check(transport, *args)


def _end_with(socket_number: int) -> None:
    """End this process when who gives it jobs is gone."""
    poll = select.poll()
    poll.register(socket_number, 0)  # hanging up is always told
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])
