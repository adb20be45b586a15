"""Ranks that have both: started by mpirun, so that MPI is theirs, and with the pipes of shared memory between them.

python -m benchmarks.under_mpirun FOLDER      # one rank; `launch` has mpirun start it
"""

import importlib.util
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from launchers.devices import set_up
from records.errors import RunFailed, UsageError
from transports.pipes import Endpoint
from transports.shared_memory import SharedMemory

ROOT = Path(__file__).resolve().parent.parent
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_DEATHS, _FAILURE = "deaths", "failure"


def launch(work: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
    """Run `work(transport, *args)` in processes that mpirun starts, bound to no core; return their results.

    Raises UsageError if there is no MPI, RunFailed if a rank fails.
    """
    if not shutil.which("mpirun") or not importlib.util.find_spec("mpi4py"):
        raise UsageError("--peers mpi: needs mpirun and mpi4py: pip install -e '.[mpi]'")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job").write_bytes(cloudpickle.dumps((work, args, record)))
        for dst in range(world_size):
            for src in (*range(world_size), _DEATHS):
                os.mkfifo(_pipe(folder, src, dst))
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(world_size)]
        done = subprocess.run(
            [*command, sys.executable, "-m", "benchmarks.under_mpirun", name],
            cwd=ROOT, env=os.environ | _AS_ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            failure = folder / _FAILURE
            why = failure.read_text(encoding="utf-8") if failure.exists() else done.stderr[-1000:]
            raise RunFailed(f"mpirun ended with exit code {done.returncode}: {why.strip()}")
        return [pickle.loads((folder / f"result {rank}").read_bytes()) for rank in range(world_size)]


def _pipe(folder: Path, src: int | str, dst: int) -> Path:
    return folder / f"{src} to {dst}"


def _open(path: Path) -> Connection:
    return Connection(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # for both, so that it neither waits nor ends


def main(folder: Path) -> None:
    """Be one rank."""
    from mpi4py import MPI

    rank, world_size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    multiprocessing.current_process().authkey = b"one run"  # who hands out memory asks for it
    work, args, record = pickle.loads((folder / "job").read_bytes())
    device, recorder = set_up("cpu", rank, world_size, record, seed=0)
    peers = [peer for peer in range(world_size) if peer != rank]
    endpoint = Endpoint(
        rank,
        world_size,
        {peer: _open(_pipe(folder, peer, rank)) for peer in peers},
        {peer: _open(_pipe(folder, rank, peer)) for peer in peers},
        _open(_pipe(folder, _DEATHS, rank)),
    )
    with SharedMemory(endpoint, device, 120.0, recorder) as transport:
        try:
            result = work(transport, *args)
            transport.barrier()
        except BaseException:
            with suppress(FileExistsError), open(folder / _FAILURE, "x", encoding="utf-8") as file:  # the first one
                file.write(traceback.format_exc())
            MPI.COMM_WORLD.Abort(1)
    (folder / f"result {rank}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
