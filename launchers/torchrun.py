"""Be one of the ranks that torchrun has started: they share no memory, and torchrun ends all when one dies."""

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from launchers.devices import set_up
from launchers.launcher import Launcher
from launchers.parent import die_with_parent
from records.errors import RunFailed, UsageError
from transports.base import PeerLost, Transport, WaitTimeout
from transports.link import Link


def launcher() -> Launcher:
    """Return the launcher of this process, which torchrun has started."""
    return Launcher(
        name="torchrun",
        launch=launch,
        transport="process_group",
        world_size=_world_size(),
        is_first=_rank() == 0,
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
    from transports.process_group import connect  # torch.distributed is slow to load

    die_with_parent()
    rank = _rank()
    if world_size != _world_size() or restarts:
        raise UsageError(f"torchrun started {_world_size()} ranks, not {world_size}, and starts none again")
    place, recorder = set_up(device, rank, world_size, record, seed)
    try:
        transport = connect(lambda _: place, timeout, recorder, link)
    except RuntimeError as error:
        raise RunFailed(f"torch.distributed did not start: {' '.join(str(error).split())}") from error
    try:
        with transport:
            reports = [lambda value: on_report(rank, value)] if on_report else []
            result = work(transport, *reports, *_agreed(transport, args))
            if rank != 0:
                transport.isend(result, 0, "result")
                return []
            return [result, *(transport.recv(peer, "result").object for peer in transport.peers)]
    except (PeerLost, WaitTimeout) as error:
        raise RunFailed(f"rank {rank}: {error}") from error


def environment_of_others() -> dict[str, str]:
    """Return the environment for a process that a rank starts and that is to be no rank itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}


def _agreed(transport: Transport, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `args` with the first as on rank 0: each process has made its own, at its own time of day."""
    with transport.recorder.paused():
        if args and transport.rank != 0:
            return transport.recv(0, "arguments").object, *args[1:]
        for peer in transport.peers if args else ():
            transport.isend(args[0], peer, "arguments")
    return args


def _world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def _rank() -> int:
    return int(os.environ["RANK"])
