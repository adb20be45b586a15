"""Find out from the environment or the kernel what started this process; make environments for other processes."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OF_MPIRUN = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK")  # of Open MPI, MPICH and their kin
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def started_by_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def started_by_mpirun() -> bool:
    """Return whether mpirun or a substitute, such as Slurm's srun --mpi, has started this process."""
    return any(name in os.environ for name in _OF_MPIRUN)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """In the block, these variables have these values; at its end, the old environment is restored."""
    former = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in set(os.environ) - set(former):
            del os.environ[name]
        os.environ.update(former)


def die_with_parent() -> None:
    """Make the kernel kill this process, also if it is stopped, when the thread that made it ends; only on Linux.

    A process whose parent is gone already when it calls this is not killed: it must find out by other means.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
