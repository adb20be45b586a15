"""The transports of a process group, for the contract of all transports."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gradwire.backend.rendezvous import meet
from gradwire.backend.transport import GroupTransport, Shared
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.messages import Setup
from tests.engines import LIMIT, Engine
from tests.pools import Pool, rank_here


class GroupRanks(Engine):
    """Processes that find each other through a store; what is not lent is copied, so that its Work is done."""

    def run(self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
        """See Engine."""
        with tempfile.TemporaryDirectory() as folder:
            work = partial(_on_group, f"{folder}/store", world_size, check, args, record)
            return Pool.running("processes").run(world_size, work)


def _on_group(store: str, n: int, check: Callable[..., Any], args: tuple[Any, ...], record: bool) -> Any:
    rank = rank_here()
    (pipes,) = meet(dist.FileStore(store, n), rank, n, timedelta(seconds=LIMIT), meshes=1)
    setup = Setup(torch.device("cpu"), LIMIT, Recorder(rank, record))
    with GroupTransport(pipes, setup, Shared(range(n))) as transport:
        return check(transport, *args)
