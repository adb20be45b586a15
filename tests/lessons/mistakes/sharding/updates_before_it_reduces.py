"""Updates its own chunk, the right one, before its gradient is reduced."""

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
    own = (r + 1) % N
    update(x_chunks[own], g_chunks[own])
    for s in range(N - 1):
        sent.append(transport.isend(g_chunks[(r - s) % N], right, "gradient"))
        with transport.recv(left, "gradient") as received:
            g_chunks[(r - s - 1) % N].add_(received.vector)
    for s in range(N - 1):
        sent.append(transport.isend(x_chunks[(r + 1 - s) % N], right, "parameters"))
        transport.recv(left, "parameters").copy_to(x_chunks[(r - s) % N])
    for work in sent:
        work.wait()
