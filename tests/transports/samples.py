"""What several tests of the transports use."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from launchers.fork_server import start_context
from transports.pipes import wire
from transports.shared_memory import SharedMemory

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip
MILLION = 1_000_000


def die(how: str = "SIGKILL") -> NoReturn:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


@contextmanager
def pair(kind: type[SharedMemory] = SharedMemory) -> Iterator[tuple[Any, SharedMemory]]:
    """Give two transports that both live in this process, the first of the given kind."""
    endpoints, notices = wire(2, start_context())
    place = torch.device("cpu")
    with kind(endpoints[0], place, 5, None) as first, SharedMemory(endpoints[1], place, 5, None) as second:
        yield first, second
    for notice in notices:
        notice.close()
