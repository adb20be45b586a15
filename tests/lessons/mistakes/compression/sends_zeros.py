"""Sends the decoded vector, whose elements are zeros but for a few."""

import torch

from transports.base import Transport


def compress(g: torch.Tensor, residual: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    residual.add_(g)
    indices = residual.abs().topk(min(k, len(residual)), sorted=False).indices
    values = residual[indices]
    residual[indices] = 0
    return indices.to(torch.int32), values


def decompress(indices: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    return values.new_zeros(length).index_copy_(0, indices.long(), values)


def exchange(transport: Transport, g: torch.Tensor, residual: torch.Tensor, k: int) -> torch.Tensor:
    N, r = transport.world_size, transport.rank
    k = min(k, len(g))
    indices, values = compress(g, residual, k)
    code = decompress(indices, values, len(g))
    for i in range(1, N):
        transport.isend(code, (r + i) % N, "code")
    total = torch.zeros_like(g)
    for rank in range(N):
        if rank == r:
            total.add_(code)
            continue
        with transport.recv(rank, "code") as received:
            total.add_(received.vector)
    return total.div_(N)
