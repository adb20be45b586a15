"""Returns the samples of this rank, where those of all were asked for."""

import torch

from lessons.solutions.oracle import cut, one_process, verify  # noqa: F401 - these are right
from strategies.collectives import ring_all_reduce
from transports.base import Transport


def average(transport: Transport, g: torch.Tensor, n: int) -> int:
    if n == 0:
        g.zero_()
    g.div_(ring_all_reduce(g.mul_(n), transport, n))
    return n
