"""What several tests of the transports use."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch

from gradwire.core.launchers.fork_server import start_context
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.messages import Setup
from gradwire.core.transports.pipes import wire
from gradwire.core.transports.shared_memory import SharedMemory

MILLION = 1_000_000


def die(how: str = "SIGKILL") -> NoReturn:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


@contextmanager
def pair(kind: type[SharedMemory] = SharedMemory) -> Iterator[tuple[Any, SharedMemory]]:
    """Give two transports that both live in this process, the first of the given kind."""
    with world(2, kind) as (first, second):
        yield first, second


@contextmanager
def world(world_size: int, kind: type[SharedMemory] = SharedMemory) -> Iterator[list[Any]]:
    """Give the transports of all ranks, which all live in this process, the first of the given kind."""
    endpoints, notices = wire(world_size, start_context())
    with ExitStack() as stack:
        yield [
            stack.enter_context(transport(endpoint, Setup(torch.device("cpu"), 5, Recorder(enabled=False))))
            for transport, endpoint in zip([kind] + [SharedMemory] * (world_size - 1), endpoints, strict=True)
        ]
    for notice in notices:
        notice.close()
