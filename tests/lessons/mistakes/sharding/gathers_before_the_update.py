"""Sends its chunk of x before it has updated it."""

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
    own = (r + 1) % N
    for s in range(N - 1):
        sent.append(transport.isend(x_chunks[(r + 1 - s) % N], right, "parameters"))
        transport.recv(left, "parameters").copy_to(x_chunks[(r - s) % N])
    update(x_chunks[own], g_chunks[own] / N)
    for work in sent:
        work.wait()
