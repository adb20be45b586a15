"""Every rank begins with its own vector, so that each adds in another order."""

import torch

from lessons.solutions.oracle import cut, one_process, verify  # noqa: F401 - these are right
from transports.base import Transport


def average(transport: Transport, g: torch.Tensor, n: int) -> int:
    if n == 0:
        g.zero_()
    sent = [transport.isend(g.mul_(n), peer, "g", n=n) for peer in transport.peers[:1]]
    sent += [transport.isend(g, peer, "g", n=n) for peer in transport.peers[1:]]
    total = g.clone()
    for step in range(1, transport.world_size):
        with transport.recv((transport.rank - step) % transport.world_size, "g") as received:
            total.add_(received.vector)
            n += received.n
    for work in sent:
        work.wait()
    g.copy_(total).div_(n)
    return n
