"""A data set and models of a user's own, for `--dataset tests.workload:moons --model tests.workload:batch_norm`."""

import torch
from torch import nn


def moons() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return 190 training and 60 test points of two classes that a line separates."""
    x = torch.randn(250, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + x[:, 1] > 0).long()
    return x[:190], y[:190], x[190:], y[190:]


def batch_norm(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a small network with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, n_classes)
    )


def linear(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a linear classifier."""
    return nn.Linear(input_shape[0], n_classes)
