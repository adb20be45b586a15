"""Rank 0 reduces, updates all of x, and sends it to all: a server, which keeps the whole state."""

from collections.abc import Callable

import torch

from transports.base import Transport


def step(
    transport: Transport, x: torch.Tensor, g: torch.Tensor, update: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    N, r = transport.world_size, transport.rank
    if r != 0:
        transport.isend(g, 0, "gradient").wait()
        transport.recv(0, "parameters").copy_to(x)
        return
    for peer in transport.peers:
        with transport.recv(peer, "gradient") as received:
            g.add_(received.vector)
    update(x, g / N)
    for work in [transport.isend(x, peer, "parameters") for peer in transport.peers]:
        work.wait()
