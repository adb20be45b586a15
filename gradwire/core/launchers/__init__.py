"""How the ranks of a run are started and watched. `find_launcher` says how it is done in this process.

Importing this loads nothing large, so that a script can first of all have the fork server started.
"""

from collections.abc import Callable
from typing import Any

from gradwire.core.launchers import local
from gradwire.core.launchers.environment import started_by_mpirun, started_by_torchrun, started_with_others
from gradwire.core.launchers.fork_server import preload
from gradwire.core.launchers.launcher import Job, Launch, Launcher
from gradwire.core.records.errors import UsageError, nearest

__all__ = ["LAUNCHERS", "Job", "Launch", "Launcher", "find_launcher", "launch", "preload", "warm_up"]

LAUNCHERS = ("local", "torchrun", "mpi", "dask")


def launch(work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """Run `work(transport, *args)` in `world_size` processes of this machine; return their results in rank order.

    `options`: `timeout`, `roles`, `record` and whatever else a Job has. Raises RunFailed when a rank fails.
    """
    return local.launch(Job(work, world_size, args, **options))


def warm_up() -> None:
    """Begin what the local launcher would have to wait for, where no other has started this process."""
    if not (started_by_torchrun() or started_by_mpirun()):
        local.LAUNCHER.warm_up()


def find_launcher(name: str | None = None, scheduler: str | None = None) -> Launcher:
    """Return a launcher by its name, by default the one that has started this process, else the local one.

    `scheduler`: the address of Dask's, which only Dask has. Raises UsageError.
    """
    if name is not None and name not in LAUNCHERS:
        raise UsageError(f"--launcher {name}: unknown; {nearest(name, LAUNCHERS)}there are {', '.join(LAUNCHERS)}")
    if name == "dask" or (name is None and scheduler is not None):
        if started_with_others():
            option = f"--scheduler {scheduler}" if name is None else "--launcher dask"
            raise UsageError(
                f"{option}: torchrun or mpirun has started several processes, and each would begin a run; start one, "
                "with python"
            )
        from gradwire.clusters import dask

        return dask.launcher(scheduler)
    if scheduler is not None:
        raise UsageError(f"--scheduler {scheduler}: is Dask's; leave --launcher {name} out")
    if name == "torchrun" or (name is None and started_by_torchrun()):
        from gradwire.clusters import torchrun

        return torchrun.launcher()
    if name == "mpi" or (name is None and started_by_mpirun()):
        from gradwire.clusters import mpirun

        return mpirun.launcher()
    return local.LAUNCHER
