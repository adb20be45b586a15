"""Gathers the gradients, and updates its own chunk only."""

from collections.abc import Callable

import torch

from transports.base import Transport


def step(
    transport: Transport, x: torch.Tensor, g: torch.Tensor, update: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    g_chunks, x_chunks = torch.tensor_split(g, N), torch.tensor_split(x, N)
    sent = []
    for s in range(N - 1):
        sent.append(transport.isend(g_chunks[(r - s) % N], right, "gradient"))
        with transport.recv(left, "gradient") as received:
            g_chunks[(r - s - 1) % N].add_(received.vector)
    for s in range(N - 1):
        sent.append(transport.isend(g_chunks[(r + 1 - s) % N], right, "mean"))
        transport.recv(left, "mean").copy_to(g_chunks[(r - s) % N])
    own = (r + 1) % N
    update(x_chunks[own], g_chunks[own] / N)
    for work in sent:
        work.wait()
