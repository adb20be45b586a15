"""What this wing adds to the launchers of the core: torchrun, mpirun and Dask."""

from gradwire.core.launchers import LAUNCHERS, LauncherKind
from gradwire.core.launchers.environment import started_by_mpirun, started_by_torchrun, started_with_others
from gradwire.core.launchers.launcher import Launcher
from gradwire.core.records.errors import UsageError


def _torchrun(scheduler: str | None) -> Launcher:
    from gradwire.clusters import torchrun

    return torchrun.launcher()


def _mpi(scheduler: str | None) -> Launcher:
    from gradwire.clusters import mpirun

    return mpirun.launcher()


def _dask(scheduler: str | None) -> Launcher:
    if started_with_others():
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
