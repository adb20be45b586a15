"""Sends indices and values apart."""

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
    indices, values = compress(g, residual, k)
    for i in range(1, N):
        transport.isend(indices, (r + i) % N, "indices")
        transport.isend(values, (r + i) % N, "values")
    total = torch.zeros_like(g)
    for rank in range(N):
        if rank == r:
            total.add_(decompress(indices, values, len(g)))
            continue
        with transport.recv(rank, "indices") as indices_k, transport.recv(rank, "values") as values_k:
            total.add_(decompress(indices_k.vector, values_k.vector, len(g)))
    return total.div_(N)
