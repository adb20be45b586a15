"""Lab 1, solved: one step of `strategies/synchronous_server/param_server.py`, without weights, deaths and codecs."""

from collections.abc import Callable

import torch

from gradwire.core.transports.base import Transport

SERVER = 0


def serve(transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None]) -> None:
    """Rank 0, one step: take a gradient of every worker, update x [P] once with their mean, send x to all."""
    total = torch.zeros_like(x)
    for worker in transport.peers:
        with transport.recv(worker, "gradient") as received:
            total.add_(received.vector)
    update(total / len(transport.peers))
    for worker in transport.peers:
        transport.isend(x, worker, "parameters")


def work(transport: Transport, x: torch.Tensor, g: torch.Tensor) -> None:
    """A worker, one step: send the gradient g [P] to the server; replace x [P], in place, by the server's new one."""
    transport.isend(g, SERVER, "gradient")
    transport.recv(SERVER, "parameters").copy_to(x)
