"""The wing of clusters: the launchers torchrun, mpirun and Dask; under mpirun the failure of a process ends all."""

import os
import sys

from gradwire.core.launchers import LAUNCHERS, LauncherKind
from gradwire.core.launchers.environment import started_by_mpirun, started_by_torchrun
from gradwire.core.launchers.launcher import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.training.wing import Wing


def _torchrun(scheduler: str | None) -> Launcher:
    from gradwire.clusters import torchrun

    return torchrun.launcher()


def _mpi(scheduler: str | None) -> Launcher:
    from gradwire.clusters import mpirun

    return mpirun.launcher()


def _started_with_others() -> bool:
    """Return whether the launcher of this process has started several."""
    sizes = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", *(["WORLD_SIZE"] if started_by_torchrun() else [])]
    return any(os.environ.get(name, "1") != "1" for name in sizes)


def _dask(scheduler: str | None) -> Launcher:
    if _started_with_others():
        option = "--launcher dask" if scheduler is None else f"--scheduler {scheduler}"
        raise UsageError(
            f"{option}: torchrun or mpirun has started several processes, and each would begin a run; start one, "
            "with python"
        )
    from gradwire.clusters import dask

    return dask.launcher(scheduler)


LAUNCHERS["torchrun"] = LauncherKind(_torchrun, started_by_torchrun)
LAUNCHERS["mpi"] = LauncherKind(_mpi, started_by_mpirun)
LAUNCHERS["dask"] = LauncherKind(_dask, has_scheduler=True)


class Clusters(Wing):
    """Ranks that others have started."""

    def fail(self, code: int) -> None:
        """End all ranks of MPI, if this is one: mpirun would wait for the others."""
        if "mpi4py.MPI" in sys.modules:
            from gradwire.clusters.mpirun import end_all

            end_all(code)


WING = Clusters()
