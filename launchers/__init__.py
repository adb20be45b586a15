"""How the ranks of a run are started and watched. `find_launcher` says how it is done in this process.

Importing this loads nothing large, so that a script can first of all have the fork server started.
"""

import os

from launchers import local
from launchers.fork_server import preload
from launchers.launcher import Launch, Launcher
from launchers.local import launch

__all__ = ["Launch", "Launcher", "find_launcher", "launch", "preload"]


def find_launcher() -> Launcher:
    """Return the launcher of this process: torchrun if that has started it, else the local one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return local.LAUNCHER
    from launchers import torchrun

    return torchrun.launcher()
