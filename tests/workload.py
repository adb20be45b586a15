"""A data set and models of a user's own, for `--dataset tests.workload:moons --model tests.workload:batch_norm`."""

import math
import multiprocessing
import os
import signal
import threading
import time

import torch
from torch import nn
from torch.utils.data import Dataset

from gradwire.language.muon import Joined


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


class _Words(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).long()


def embedding(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a small network with an embedding and a norm."""
    return nn.Sequential(
        _Words(), nn.Embedding(2, 4), nn.Flatten(), nn.LayerNorm(4 * input_shape[0]), nn.Linear(8, 6), nn.Tanh(),
        nn.Linear(6, n_classes),
    )  # fmt: skip


def cumulative_batch_norm(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return such a network whose statistics are the mean over all batches: it must know how many there were."""
    network = batch_norm(input_shape, n_classes)
    network[1].momentum = None  # type: ignore[index]
    return network


def linear(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a linear classifier."""
    return nn.Linear(input_shape[0], n_classes)


class _Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_rank(1):
            raise RuntimeError("a layer of rank 1 is broken")
        return x


def raises_on_rank_1(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a classifier that works in the launcher and on every rank but one."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_classes), _Broken())


def is_rank(rank: int) -> bool:
    """Whether this process is that rank, whoever has started it."""
    told = [os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK")]
    return multiprocessing.current_process().name == f"rank {rank}" or str(rank) in told


class _Mortal(nn.Module):
    passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
            if is_rank(2) and self.passes == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            if not is_rank(2) and self.passes <= 20 and multiprocessing.parent_process() is not None:
                time.sleep(0.05)  # who waits for nobody leaves rank 2 its steps, on a busy machine too
        return x


def mortal(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a network with BatchNorm that kills the process of rank 2 in its fourth step, in each of its lives."""
    return nn.Sequential(_Mortal(), nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_classes))


def lazy(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a network whose sizes are not known yet."""
    return nn.LazyLinear(n_classes)


class _Points(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(2), index % 2


def not_picklable() -> tuple[_Points, _Points]:
    """Return two data sets with a lock in them."""
    return _Points(), _Points()


class _Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale.sum().abs().sqrt()  # whose derivative at 0 is not finite


def infinite_gradient(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a classifier with a finite loss and, in one tensor, a gradient that is not."""
    network = nn.Sequential(nn.Linear(input_shape[0], n_classes))
    network.add_module("wrong", _Wrong())
    return network


def partly_used(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a classifier of which one parameter gets no gradient."""
    network = nn.Linear(input_shape[0], n_classes)
    network.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    return network


def in_groups(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Vectors have a rate of their own, and no decay."""
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) is of] for of in (True, False))
    return torch.optim.SGD([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.1}], 0.3, 0.9)


def by_muon(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Muon for matrices; for vectors another optimizer."""
    matrices, vectors = ([p for p in parameters if (p.dim() == 2) is of] for of in (True, False))
    return Joined(torch.optim.Muon(matrices, 0.02), torch.optim.AdamW(vectors, 0.01))
