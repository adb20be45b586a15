"""Receives x, and lets a name point at it: the parameters stay as they were."""

from collections.abc import Callable

import torch

from transports.base import Transport


def serve(transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None]) -> None:
    total = torch.zeros_like(x)
    for worker in transport.peers:
        with transport.recv(worker, "gradient") as received:
            total.add_(received.vector)
    update(total / len(transport.peers))
    for worker in transport.peers:
        transport.isend(x, worker, "parameters")


def work(transport: Transport, x: torch.Tensor, g: torch.Tensor) -> None:
    transport.isend(g, 0, "gradient")
    x = transport.recv(0, "parameters").vector  # noqa: F841 - that is the mistake
