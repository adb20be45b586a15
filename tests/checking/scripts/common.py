"""What the scripts share: a group, a small model, 60 samples, and batches cut over the ranks."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset


def begin() -> tuple[int, int]:
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def dataset() -> TensorDataset:
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, :3] + x[:, 3:]).argmax(1))


def batches(rank: int, n: int, size: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of a part of the samples that is this rank's own."""
    x, y = dataset().tensors
    x, y = x[rank::n], y[rank::n]
    for i in range(0, len(x) - size + 1, size):
        yield x[i : i + size], y[i : i + size]
