"""Start one process per rank on this machine, watch over them, and leave nothing behind.

    results = launch(Job(work, 4))      # work(transport) in 4 processes; what each returned, in rank order

The launcher holds one pipe from each rank (heartbeats, reports, the result) and one to each (deaths of others). A rank
that loses its launcher ends itself; a launcher that loses a rank informs the others, asks what they were waiting
for, ends them, and raises one `RunFailed` that names the rank at fault.
"""

import os
import resource
from typing import Any

from gradwire.core.launchers.fork_server import warm_up
from gradwire.core.launchers.launcher import Job, Launcher
from gradwire.core.records.errors import UsageError

_PIPES_OF_A_PROCESS = 230  # multiprocessing's fork server hands over fewer than 256 files at once


def launch(job: Job) -> list[Any]:
    """Run the job in processes of this machine and return their results in rank order.

    Its `work` may be defined anywhere, also in a notebook or a script, which the ranks do not import: what it uses
    travels with it. Raises RunFailed when a rank fails, UsageError if something cannot be sent; no process outlives
    this call.
    """
    from gradwire.core.launchers.ranks import Ranks  # loads torch

    _make_room_for_pipes(job.world_size, job.restarts)
    warm_up()
    ranks = Ranks(job)
    try:
        ranks.start()
        results = ranks.results()
        ranks.end(patience=5.0)
        return results
    finally:
        ranks.end()


def _make_room_for_pipes(world_size: int, restarts: int) -> None:
    """Allow this process enough open files for a pipe between any two ranks. Raises UsageError."""
    if 2 * (world_size + restarts) > _PIPES_OF_A_PROCESS:
        raise UsageError(f"--restarts {restarts}: at most {_PIPES_OF_A_PROCESS // 2 - world_size} with so many ranks")
    needed = 2 * world_size * (world_size - 1) + 8 * (world_size + restarts) + 128
    allow_open_files(needed, f"--n_gpus {world_size}")


def allow_open_files(needed: int, why: str) -> None:
    """Let this process open `needed` more files. Raises UsageError, which begins with `why`."""
    needed += len(os.listdir("/dev/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UsageError(f"{why}: needs {needed} open files, but the limit is {hard}; take fewer")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


LAUNCHER = Launcher(
    name="local", launch=launch, transport="shared_memory", shared_memory=True, restarts=True, warm_up=warm_up
)
