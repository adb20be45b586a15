"""Passes whole vectors round, N - 1 times: right, but N / 2 times the bytes."""

import torch

from transports.base import Transport


def all_reduce(transport: Transport, vector: torch.Tensor) -> None:
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    passing = vector.clone()
    for _ in range(N - 1):
        transport.isend(passing, right, "vector")
        with transport.recv(left, "vector") as received:
            passing.copy_(received.vector)
        vector.add_(passing)
    vector.div_(N)
