"""Ranks of MPI that outlive a test: mpirun takes seconds to start them, so each pytest process has one set of four.

They wait for jobs on a socket, in which they use no core, and end when its other end is gone, for whatever reason.

    python -m tests.mpi_ranks ADDRESS      # one rank of them; mpirun starts it
"""

import importlib.util
import os
import pickle
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tests.engines import LIMIT, Engine
from transports.link import Link

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
MISSING = [
    what
    for what, found in (("mpi4py", importlib.util.find_spec("mpi4py")), ("mpirun", shutil.which("mpirun")))
    if not found
]
_SIZE = 4
NEEDS_MPI = (
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install -e '.[mpi]'"),
    pytest.mark.xdist_group("mpi"),  # so that one process has the ranks
)


def mpirun(n: int, *command: str) -> list[str]:
    """Return the command that starts `n` ranks, though there may be fewer cores."""
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n), sys.executable, *command]


class MpiRanks(Engine):
    """Ranks on `transports.mpi`. When one of them dies, mpirun ends all."""

    def __init__(self, link: Link | None = None) -> None:
        self._link = link

    def run(self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
        """See Engine."""
        return Pool.running().run(world_size, cloudpickle.dumps((check, world_size, args, record, self._link)))


class Pool:
    """Four ranks, from this process's point of view."""

    _running: "Pool | None" = None

    @classmethod
    def running(cls) -> "Pool":
        """Return the pool of this process, started if need be."""
        if cls._running is None:
            cls._running = cls()
        return cls._running

    @classmethod
    def end(cls) -> None:
        """End the pool of this process, if it runs."""
        pool, cls._running = cls._running, None
        if pool is not None:
            pool._end()

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(folder, "socket"))
            listener.bind(address)
            listener.listen(_SIZE)
            listener.settimeout(LIMIT)
            self._mpirun = subprocess.Popen(
                mpirun(_SIZE, "-m", "tests.mpi_ranks", address),
                cwd=ROOT, env=os.environ | ENVIRONMENT,
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                connections = [Connection(listener.accept()[0].detach()) for _ in range(_SIZE)]
            except TimeoutError:
                raise self._broken(f"the ranks of mpirun were not there within {LIMIT:g} s") from None
        self._ranks = {connection.recv(): connection for connection in connections}

    def run(self, world_size: int, job: bytes) -> list[Any]:
        """Have the first `world_size` ranks do the job; return their results. Raises RuntimeError if one fails."""
        waiting = {self._ranks[rank]: rank for rank in range(world_size)}
        try:
            for connection in waiting:
                connection.send_bytes(job)
            answers: dict[int, tuple[bool, Any]] = {}
            while waiting:
                ready = wait(list(waiting), 2 * LIMIT)
                if not ready:
                    raise self._broken(f"no answer from rank {', '.join(map(str, waiting.values()))}")
                for one in ready:
                    assert isinstance(one, Connection)
                    answers[waiting[one]] = pickle.loads(one.recv_bytes())
                    del waiting[one]
        except (EOFError, OSError) as error:
            raise self._broken(f"mpirun has ended its ranks ({error!r})") from error
        if failed := [f"rank {rank} failed:\n{answers[rank][1]}" for rank in sorted(answers) if not answers[rank][0]]:
            raise RuntimeError("\n".join(failed))
        return [answers[rank][1] for rank in range(world_size)]

    def _broken(self, why: str) -> RuntimeError:
        """End everything, so that the next test starts afresh; return what is to be raised."""
        Pool._running = None
        self._mpirun.kill()
        self._mpirun.wait()
        self._output.seek(0)
        return RuntimeError(f"{why}; its output: {self._output.read()[-2000:]}")

    def _end(self) -> None:
        for connection in self._ranks.values():
            connection.send_bytes(b"")
        try:
            self._mpirun.wait(LIMIT)
        finally:
            self._mpirun.kill()
            for connection in self._ranks.values():
                connection.close()


# What follows runs in a rank


def serve(address: str) -> None:
    """Do jobs until there are no more."""
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        connection = Connection(end.detach())
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    connection.send(MPI.COMM_WORLD.rank)
    while job := connection.recv_bytes():
        try:
            answer = cloudpickle.dumps((True, _do(job)))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)


def _do(job: bytes) -> Any:
    """Do one job, on a communicator of its own."""
    import torch
    from mpi4py import MPI

    from records.events import Recorder
    from transports.mpi import Mpi

    check, world_size, args, record, link = pickle.loads(job)
    world = MPI.COMM_WORLD
    # Never freed: a rank may close before a peer, whose last words must not turn up in the next communicator.
    comm = world.Create_group(world.group.Incl(range(world_size)))
    with Mpi(torch.device("cpu"), LIMIT, Recorder(comm.rank, record), link, comm) as transport:
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
