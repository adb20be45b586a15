"""Ranks that have both: started by mpirun, so that MPI is theirs, and with the pipes of shared memory between them.

python -m mpi4py -m benchmarks.under_mpirun FOLDER      # one rank; `launch` has mpirun start it
"""

import importlib.util
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from gradwire.core.launchers.devices import set_up
from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.transports.pipes import Endpoint
from gradwire.core.transports.shared_memory import SharedMemory

ROOT = Path(__file__).resolve().parent.parent
_MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n"]
_RANK = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.under_mpirun"]  # mpi4py ends all ranks when one fails
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def launch(work: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
    """Run `work(transport, *args)` in processes that mpirun starts, bound to no core; return their results.

    Raises UsageError if there is no MPI, RunFailed if a rank fails.
    """
    if not shutil.which("mpirun") or not importlib.util.find_spec("mpi4py"):
        raise UsageError("--peers mpi: needs mpirun and mpi4py: pip install -e '.[mpi]'")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job").write_bytes(cloudpickle.dumps((work, args, record)))
        for src, dst in product((*range(world_size), "deaths"), range(world_size)):
            os.mkfifo(folder / f"{src} to {dst}")
        command = [*_MPIRUN, str(world_size), *_RANK, name]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | _AS_ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunFailed(f"mpirun ended with exit code {done.returncode}: {done.stderr[-3000:].strip()}")
        return [pickle.loads((folder / f"result {rank}").read_bytes()) for rank in range(world_size)]


def main(folder: Path) -> None:
    """Run one rank."""
    from mpi4py import MPI

    def pipe(src: int | str, dst: int) -> Connection:
        both_ends = os.O_RDWR | os.O_NONBLOCK  # so that it neither waits nor ends
        return Connection(os.open(folder / f"{src} to {dst}", both_ends))

    rank, world_size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    multiprocessing.current_process().authkey = b"one run"  # a rank that hands out memory asks for it
    work, args, record = pickle.loads((folder / "job").read_bytes())
    setup = set_up(Job(work, world_size, args, record=record), rank)
    peers = [peer for peer in range(world_size) if peer != rank]
    inbound, outbound = {peer: pipe(peer, rank) for peer in peers}, {peer: pipe(rank, peer) for peer in peers}
    endpoint = Endpoint(rank, world_size, inbound, outbound, pipe("deaths", rank))
    transport = SharedMemory(endpoint, setup)
    result = work(transport, *args)
    transport.barrier()
    transport.close()
    (folder / f"result {rank}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
