"""Lab 8, solved: a step of `strategies/all_reduce/sharded_ring.py`, without weights and a bound on the norm."""

from collections.abc import Callable

import torch

from gradwire.core.transports.base import Transport


def step(
    transport: Transport, x: torch.Tensor, g: torch.Tensor, update: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    """One step: reduce-scatter g [P], update this rank's own part of x [P], all-gather x."""
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    g_chunks, x_chunks = torch.tensor_split(g, N), torch.tensor_split(x, N)
    sent = []
    for s in range(N - 1):
        sent.append(transport.isend(g_chunks[(r - s) % N], right, "gradient"))
        with transport.recv(left, "gradient") as received:
            g_chunks[(r - s - 1) % N].add_(received.vector)
    own = (r + 1) % N  # whose sum is finished here
    update(x_chunks[own], g_chunks[own] / N)
    for s in range(N - 1):
        sent.append(transport.isend(x_chunks[(r + 1 - s) % N], right, "parameters"))
        transport.recv(left, "parameters").copy_to(x_chunks[(r - s) % N])
    for work in sent:  # until its neighbour has read what it sent
        work.wait()
