"""How the ranks of a group find each other: through its store, each opens the others' pipes by /proc."""

import json
import os
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from weakref import WeakSet

import torch.distributed as dist

from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.pipes import Endpoint


class Pipes(Endpoint):
    """The ends of the pipes of one rank, which has no launcher: on `deaths`, nobody reports anything."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, rank: int, world_size: int) -> None:
        reader, self._never_written = Pipe(duplex=False)
        super().__init__(rank, world_size, {}, {}, reader)
        self.entrances: dict[int, Connection] = {}  # into which a peer writes, until it has opened them itself
        self.pids: dict[int, int] = {}  # of the peers
        for peer in range(world_size):
            if peer != rank:
                self.inbound[peer], self.entrances[peer] = Pipe(duplex=False)
        _open.add(self)

    def close(self) -> None:
        """Close this process's copies of the pipe ends."""
        super().close()
        for connection in (*self.entrances.values(), self._never_written):
            connection.close()
        _open.discard(self)


_open: WeakSet[Pipes] = WeakSet()


def _close_in_child() -> None:
    """Close the copies that a forked process has, which would hide the death of its parent from the peers."""
    for pipes in [*_open]:
        pipes.close()


os.register_at_fork(after_in_child=_close_in_child)


def meet(store: dist.Store, rank: int, size: int, limit: timedelta, meshes: int) -> list[Pipes]:
    """Return so many times this rank's pipes to all others, when all have called this. Raises RunFailed."""
    own = [Pipes(rank, size) for _ in range(meshes)]
    where = _machine(), os.getpid()
    entrances = [[pipes.entrances[peer].fileno() if peer != rank else -1 for peer in range(size)] for pipes in own]
    try:
        store.set(f"pipes of {rank}", json.dumps((*where, entrances)))
        for peer in own[0].entrances:
            machine, pid, theirs = json.loads(wait_for(store, f"pipes of {peer}", limit, peer))
            if machine != where[0]:
                raise RunFailed(
                    f"backend gradwire: rank {peer} is on another machine than rank {rank}, or in another container; "
                    'use "gloo" there'
                )
            for pipes, numbers in zip(own, theirs, strict=True):
                pipes.pids[peer] = pid
                pipes.outbound[peer] = _open_entrance(pid, numbers[rank], peer)
        store.set(f"opened by {rank}", "")
        for peer in own[0].entrances:
            wait_for(store, f"opened by {peer}", limit, peer)
    except BaseException:
        for pipes in own:
            pipes.close()
        raise
    for pipes in own:  # from here on, a pipe ends with its writer
        for end in pipes.entrances.values():
            end.close()
        pipes.entrances.clear()
    return own


def wait_for(store: dist.Store, key: str, limit: timedelta, peer: int) -> bytes:
    """Return what a peer sets when it has come so far. Raises RunFailed."""
    try:
        store.wait([key], limit)
        found: bytes = store.get(key)
    except RuntimeError as error:
        raise RunFailed(
            f"backend gradwire: rank {peer} has not come to the start of the group within {limit.total_seconds():g} s"
        ) from error
    return found


def _open_entrance(pid: int, number: int, peer: int) -> Connection:
    try:
        return Connection(os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_CLOEXEC), readable=False)
    except OSError as error:
        raise RunFailed(
            f"backend gradwire: rank {peer}, process {pid}, cannot be reached: {error.strerror}; "
            "it has ended, or belongs to another user"
        ) from error


def _machine() -> str:
    """Return what processes have in common that see each other's /proc."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
