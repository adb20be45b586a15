"""Start one process per rank on this machine, watch over them, and leave nothing behind.

    results = launch(work, 4)      # work(transport) in 4 processes; what each returned, in rank order

The launcher holds one pipe from each rank (heartbeats, reports, the result) and one to each (deaths of others). A rank
that loses its launcher ends itself; a launcher that loses a rank tells the others, asks what they were waiting
for, ends them, and raises one `RunFailed` that names the rank at fault.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from launchers.fork_server import warm_up
from launchers.launcher import Launcher
from launchers.limits import allow_open_files
from records.errors import UsageError
from transports.link import Link

_PIPES_OF_A_PROCESS = 230  # multiprocessing's fork server hands over fewer than 256 files at once


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
    """Run `work(transport, *args)` in `world_size` processes and return their results in rank order.

    The arguments are those of every launcher, see `Launch`. `work` may be defined anywhere, also in a
    notebook or a script, which the ranks do not import: what it uses travels with it. Raises RunFailed when a rank
    fails, UsageError if something cannot be sent; no process outlives this call.
    """
    from launchers.ranks import Ranks  # loads torch

    roles = ["worker"] * world_size if roles is None else list(roles)
    if len(roles) != world_size:
        raise ValueError(f"{len(roles)} roles for {world_size} ranks")
    _make_room_for_pipes(world_size, restarts)
    warm_up()
    job = (work, args, device, timeout, record, on_report is not None, seed, link)
    ranks = Ranks(timeout, roles, frozenset(expendable), job)
    try:
        ranks.start(restarts)
        results = ranks.results(on_report)
        ranks.end(patience=5.0)
        return results
    finally:
        ranks.end()


def _make_room_for_pipes(world_size: int, restarts: int) -> None:
    """Have enough open files for a pipe between any two ranks. Raises UsageError."""
    if 2 * (world_size + restarts) > _PIPES_OF_A_PROCESS:
        raise UsageError(
            f"--restarts {restarts}: at most {_PIPES_OF_A_PROCESS // 2 - world_size} with so many processes"
        )
    needed = 2 * world_size * (world_size - 1) + 8 * (world_size + restarts) + 128
    allow_open_files(needed, f"--n_gpus {world_size}")


LAUNCHER = Launcher(
    name="local",
    launch=launch,
    transport="shared_memory",
    world_size=None,
    is_first=True,
    shared_memory=True,
    restarts=True,
    warm_up=warm_up,
)
