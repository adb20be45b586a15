"""Run one of the ranks that mpirun has started, on this machine and others; it ends all of them when one fails."""

import sys
from types import TracebackType
from typing import Any

from gradwire.clusters.member import take_part
from gradwire.core.launchers.devices import set_up
from gradwire.core.launchers.environment import die_with_parent, started_by_mpirun
from gradwire.core.launchers.launcher import Job, Launcher
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.records.machine import usable_cores
from gradwire.core.transports.timing import RunningClock, sleep

_PAUSE_S = 0.01


def launcher() -> Launcher:
    """Return the launcher of this process, which mpirun has started. Raises UsageError if it has not."""
    MPI = _mpi()
    world = MPI.COMM_WORLD
    if world.size == 1 and not started_by_mpirun():
        raise UsageError("--launcher mpi: no mpirun has started this process; mpirun -n 4 python train.py ...")
    sys.excepthook = _end_all_after_a_traceback
    return Launcher(
        name="mpi",
        launch=launch,
        transport="mpi",
        world_size=world.size,
        is_first=world.rank == 0,
        facts={"mpi": MPI.Get_library_version().split(",")[0]},
    )


def launch(job: Job) -> list[Any]:
    """Run the rank that MPI has assigned; return all results on rank 0, nothing on the others.

    No rank is expendable here, and messages name no roles. Raises RunFailed when a peer has closed, or none answers.
    A process that ends with an error calls `end_all`.
    """
    from mpi4py import MPI

    from gradwire.clusters.mpi import Mpi

    die_with_parent()
    world = MPI.COMM_WORLD
    if job.world_size != world.size or job.restarts:
        raise UsageError(f"mpirun started {world.size} ranks, not {job.world_size}, and starts none again")
    _wait_for_all(world, job.timeout)
    machine = world.Split_type(MPI.COMM_TYPE_SHARED)
    cores = len(set().union(*machine.allgather(usable_cores())))  # mpirun may give each rank some of its own
    setup = set_up(job, world.rank, (machine.rank, machine.size), cores)
    machine.Free()
    transport = Mpi(setup)
    transport.align_clocks()
    return take_part(transport, job)


def _wait_for_all(world: Any, timeout: float) -> None:
    """Wait until all ranks have called this, so that the next collective call does not block. Raises RunFailed."""
    barrier, running = world.Ibarrier(), RunningClock()
    while not barrier.Test():
        if running() > timeout:
            raise RunFailed(f"rank {world.rank} waited {timeout:g} s for all ranks to start")
        sleep(_PAUSE_S)


def _end_all_after_a_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    end_all(1)


def end_all(code: int) -> None:
    """Where this process is a rank of MPI, end all ranks with this exit code: mpirun would wait for the others."""
    if "mpi4py.MPI" in sys.modules and (world := _mpi().COMM_WORLD).size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        world.Abort(code)


def _mpi() -> Any:
    """Return MPI. Raises UsageError."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"--launcher mpi: mpi4py cannot be used ({one_line(error)}); pip install -e '.[mpi]', "
            "or take another --launcher"
        ) from error
    return MPI
