"""Returns the indices as topk gives them, in int64, and unpacks int32."""

import torch

from compression.base import pack, unpack
from transports.base import Transport


def compress(g: torch.Tensor, residual: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    residual.add_(g)
    indices = residual.abs().topk(min(k, len(residual)), sorted=False).indices
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def decompress(indices: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    return values.new_zeros(length).index_copy_(0, indices.long(), values)


def exchange(transport: Transport, g: torch.Tensor, residual: torch.Tensor, k: int) -> torch.Tensor:
    N, r = transport.world_size, transport.rank
    k = min(k, len(g))
    indices, values = compress(g, residual, k)
    code = pack(values, indices)
    for i in range(1, N):
        transport.isend(code, (r + i) % N, "code")
    total = torch.zeros_like(g)
    for rank in range(N):
        if rank == r:
            total.add_(decompress(indices, values, len(g)))
            continue
        with transport.recv(rank, "code") as received:
            values_k, indices_k = unpack(received.vector, (k, g.dtype), (k, torch.int32))
            total.add_(decompress(indices_k, values_k, len(g)))
    return total.div_(N)
