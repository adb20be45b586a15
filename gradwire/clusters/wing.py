"""The wing of clusters: the launchers torchrun, mpirun and Dask; under mpirun the failure of a process ends all."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from gradwire.core.launchers import local
from gradwire.core.launchers.environment import started_by_mpirun, started_by_torchrun
from gradwire.core.launchers.launcher import Launcher
from gradwire.core.records.errors import UsageError, nearest
from gradwire.core.records.options import OF_THIS_RUN
from gradwire.core.training.options import Panel
from gradwire.core.training.wing import Wing


@dataclass(frozen=True)
class LauncherKind:
    """A launcher by name: `make(scheduler)` returns it. Raises UsageError."""

    make: Callable[[str | None], Launcher]
    has_started: Callable[[], bool] = lambda: False
    """Whether it has started this process."""
    has_scheduler: bool = False
    """Whether it takes the address of a scheduler."""


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


LAUNCHERS = {
    "local": LauncherKind(lambda scheduler: local.LAUNCHER),
    "torchrun": LauncherKind(_torchrun, started_by_torchrun),
    "mpi": LauncherKind(_mpi, started_by_mpirun),
    "dask": LauncherKind(_dask, has_scheduler=True),
}
"""The launchers by name."""


def find_launcher(name: str | None = None, scheduler: str | None = None) -> Launcher:
    """Return a launcher by its name, by default the one that has started this process, else the local one.

    `scheduler`: the address of a scheduler, for a launcher that has one. Raises UsageError.
    """
    if name is not None and name not in LAUNCHERS:
        raise UsageError(f"--launcher {name}: unknown; {nearest(name, [*LAUNCHERS])}there are {', '.join(LAUNCHERS)}")
    if scheduler is not None:
        able = [able for able, kind in LAUNCHERS.items() if kind.has_scheduler]
        if name not in (None, *able):
            raise UsageError(f"--scheduler {scheduler}: is for --launcher {able[0]}; leave --launcher {name} out")
        name = name or able[0]
    name = name or next((name for name, kind in LAUNCHERS.items() if kind.has_started()), "local")
    return LAUNCHERS[name].make(scheduler)


@dataclass(frozen=True, kw_only=True)
class LauncherOptions(Panel):
    """Who starts the ranks."""

    launcher: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Who starts the ranks: local (this machine, sharing memory), torchrun, mpi or dask. Default: torchrun or mpirun
    if one of them has started this process, else local."""
    scheduler: str | None = field(default=None, metadata=OF_THIS_RUN)
    """With dask: the address of the scheduler whose workers take the ranks, such as tcp://host:8786. Default: a
    cluster of processes on this machine."""

    def find_launcher(self) -> Launcher:
        """Return what starts the ranks. Raises UsageError."""
        return find_launcher(self.launcher, self.scheduler)


class Clusters(Wing):
    """Ranks that others have started."""

    title = "launcher"
    panel = LauncherOptions

    def fail(self, code: int) -> None:
        """End all ranks of MPI, if this is one: mpirun would wait for the others."""
        if "mpi4py.MPI" in sys.modules:
            from gradwire.clusters.mpirun import end_all

            end_all(code)


WING = Clusters()
