"""How the ranks of a run are started and watched.

Importing this loads nothing large, so that a script can first of all have the fork server started.
"""

from collections.abc import Callable
from typing import Any

from gradwire.core.launchers import local
from gradwire.core.launchers.environment import started_by_mpirun, started_by_torchrun
from gradwire.core.launchers.fork_server import preload
from gradwire.core.launchers.launcher import Job, Launch, Launcher

__all__ = ["Job", "Launch", "Launcher", "launch", "preload", "warm_up"]


def launch(work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """Run `work(transport, *args)` in `world_size` processes of this machine; return their results in rank order.

    `options`: `timeout`, `roles`, `record` and whatever else a Job has. Raises RunFailed when a rank fails.
    """
    return local.launch(Job(work, world_size, args, **options))


def warm_up() -> None:
    """Start the fork server ahead of the first launch, unless torchrun or mpirun has started this process."""
    if not (started_by_torchrun() or started_by_mpirun()):
        local.LAUNCHER.warm_up()
