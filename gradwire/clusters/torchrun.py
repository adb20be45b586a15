"""Run one of the ranks that torchrun has started, on this machine and others; it ends all here when one dies."""

import os
from typing import Any

from gradwire.clusters.member import take_part, uses_nccl
from gradwire.core.launchers.devices import set_up
from gradwire.core.launchers.environment import die_with_parent, started_by_torchrun
from gradwire.core.launchers.launcher import Job, Launcher
from gradwire.core.records.errors import RunFailed, UsageError


def launcher() -> Launcher:
    """Return the launcher of this process, which torchrun has started. Raises UsageError if it has not."""
    if not started_by_torchrun():
        raise UsageError("--launcher torchrun: it did not start this process; torchrun --nproc-per-node 4 train.py ...")
    return Launcher(
        name="torchrun",
        launch=launch,
        transport="process_group",
        world_size=int(os.environ["WORLD_SIZE"]),
        is_first=os.environ["RANK"] == "0",
    )


def launch(job: Job) -> list[Any]:
    """Run the rank that torchrun has assigned; return all results on rank 0, nothing on the others.

    No rank is expendable here, and messages name no roles. Raises RunFailed when a peer is lost, or none answers.
    """
    from gradwire.clusters.rendezvous import connect  # torch.distributed is slow to load

    die_with_parent()
    rank, started = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if job.world_size != started or job.restarts:
        raise UsageError(f"torchrun started {started} ranks, not {job.world_size}, and starts none again")
    local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    setup = set_up(job, rank, local)
    try:
        transport = connect(setup, uses_nccl(job, local[1]))
    except RuntimeError as error:
        raise RunFailed(f"torch.distributed did not start: {' '.join(str(error).split())}") from error
    return take_part(transport, job)
