"""What scripts share whose author had not read the rules: other data, a regression model, and loaders."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


def data(n: int = 48, seed: int = 1) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, x @ torch.randn(6, 1, generator=g) + 0.1 * torch.randn(n, 1, generator=g))


def classes(n: int = 48, seed: int = 1) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g))


def net(out: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, out))


def loader(samples: Dataset, batch: int = 4, **more) -> tuple[DataLoader, DistributedSampler]:
    sampler = DistributedSampler(samples, **more)
    return DataLoader(samples, batch_size=batch, sampler=sampler), sampler
