"""Be one of the ranks that torchrun has started, on this machine and others; it ends all of a machine when one dies."""

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from launchers.devices import set_up
from launchers.environment import started_by_torchrun
from launchers.launcher import Launcher
from launchers.member import take_part, uses_nccl
from launchers.parent import die_with_parent
from records.errors import RunFailed, UsageError
from transports.link import Link


def launcher() -> Launcher:
    """Return the launcher of this process, which torchrun has started. Raises UsageError if it has not."""
    if not started_by_torchrun():
        raise UsageError(
            "--launcher torchrun: it has not started this process; torchrun --nproc-per-node 4 train.py ..."
        )
    return Launcher(
        name="torchrun",
        launch=launch,
        transport="process_group",
        world_size=_of_environment("WORLD_SIZE"),
        is_first=_of_environment("RANK") == 0,
        shared_memory=False,
        restarts=False,
    )


def launch(
    work: Callable[..., Any],
    world_size: int,
    *args: Any,
    device: str = "cpu",
    timeout: float = 120.0,
    roles: Sequence[str] | None = None,
    record: bool = False,
    on_report: Callable[[int, Any], None] | None = None,
    expendable: Collection[int] = (),
    restarts: int = 0,
    seed: int = 0,
    link: Link | None = None,
) -> list[Any]:
    """Run `work(transport, *args)` as the rank that torchrun says; return all results on rank 0, nothing on the others.

    The arguments are those of every launcher, see `Launch`; no rank is expendable here, and messages name no roles.
    Raises RunFailed when a peer is lost, or nobody answers.
    """
    from transports.rendezvous import connect  # torch.distributed is slow to load

    die_with_parent()
    rank, started = _of_environment("RANK"), _of_environment("WORLD_SIZE")
    if world_size != started or restarts:
        raise UsageError(f"torchrun started {started} ranks, not {world_size}, and starts none again")
    local = _of_environment("LOCAL_RANK"), _of_environment("LOCAL_WORLD_SIZE")
    place, recorder = set_up(device, rank, world_size, record, seed, local)
    try:
        transport = connect(place, timeout, recorder, link, nccl=uses_nccl(device, local[1], roles))
    except RuntimeError as error:
        raise RunFailed(f"torch.distributed did not start: {' '.join(str(error).split())}") from error
    return take_part(transport, work, args, on_report)


def _of_environment(name: str) -> int:
    return int(os.environ[name])
