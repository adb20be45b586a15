"""How the ranks of a run are started and watched. `find_launcher` says how it is done in this process."""

from launchers import local, torchrun
from launchers.fork_server import preload
from launchers.launcher import Launch, Launcher
from launchers.local import launch

__all__ = ["Launch", "Launcher", "find_launcher", "launch", "preload"]


def find_launcher() -> Launcher:
    """Return the launcher of this process: torchrun if that has started it, else the local one."""
    return torchrun.launcher() or local.LAUNCHER
