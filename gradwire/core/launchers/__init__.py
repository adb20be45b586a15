"""How the ranks of a run are started and watched. `find_launcher` says how it is done in this process.

Importing this loads nothing large, so that a script can first of all have the fork server started.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradwire.core.launchers import local
from gradwire.core.launchers.environment import started_by_mpirun, started_by_torchrun
from gradwire.core.launchers.fork_server import preload
from gradwire.core.launchers.launcher import Job, Launch, Launcher
from gradwire.core.records.errors import UsageError, nearest

__all__ = ["LAUNCHERS", "Job", "Launch", "Launcher", "LauncherKind", "find_launcher", "launch", "preload", "warm_up"]


@dataclass(frozen=True)
class LauncherKind:
    """A launcher by name: `make(scheduler)` returns it. Raises UsageError."""

    make: Callable[[str | None], Launcher]
    has_started: Callable[[], bool] = lambda: False
    """Whether it has started this process."""
    has_scheduler: bool = False
    """Whether it takes the address of a scheduler."""


LAUNCHERS = {"local": LauncherKind(lambda scheduler: local.LAUNCHER)}
"""The launchers; wings add theirs."""


def launch(work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """Run `work(transport, *args)` in `world_size` processes of this machine; return their results in rank order.

    `options`: `timeout`, `roles`, `record` and whatever else a Job has. Raises RunFailed when a rank fails.
    """
    return local.launch(Job(work, world_size, args, **options))


def warm_up() -> None:
    """Start the fork server ahead of the first launch, unless torchrun or mpirun has started this process."""
    if not (started_by_torchrun() or started_by_mpirun()):
        local.LAUNCHER.warm_up()


def find_launcher(name: str | None = None, scheduler: str | None = None) -> Launcher:
    """Return a launcher by its name, by default the one that has started this process, else the local one.

    `scheduler`: the address of a scheduler, for a launcher that has one. Raises UsageError.
    """
    if name is not None and name not in LAUNCHERS:
        raise UsageError(f"--launcher {name}: unknown; {nearest(name, [*LAUNCHERS])}there are {', '.join(LAUNCHERS)}")
    if scheduler is not None:
        able = [able for able, kind in LAUNCHERS.items() if kind.has_scheduler]
        if not able:
            raise UsageError(f"--scheduler {scheduler}: no launcher here has one; leave it out")
        if name not in (None, *able):
            raise UsageError(f"--scheduler {scheduler}: is for --launcher {able[0]}; leave --launcher {name} out")
        name = name or able[0]
    name = name or next((name for name, kind in LAUNCHERS.items() if kind.has_started()), "local")
    return LAUNCHERS[name].make(scheduler)
