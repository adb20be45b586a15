"""Parameters without a gradient keep their value and their state, as in torch: never used, sometimes, on one rank."""

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire.core.strategy.descent import Descent
from gradwire.core.transports.base import Transport
from strategies import STRATEGIES
from tests.ranks import run
from tests.runs import SYNCHRONOUS, WITHOUT_CHANCE, n_gpus_of, strategy_of
from tests.strategies.loops import N_STEPS, OPTIMIZERS, X, Y, Rank, Task

EPOCHS = 2
DECAYED = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


class Sometimes(nn.Module):
    """Layers that some steps, or some ranks, do not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = {name: nn.Linear(5, 3) for name in ("never", "always", "sometimes", "on_one_rank", "zero")}
        self.layers = nn.ModuleDict(layers).double()
        self.used: set[str] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the sum of what the layers that are `used` give."""
        out = self.layers["always"](x) - 0 * self.layers["zero"](x)
        for name in sorted(self.used):
            out = out + self.layers[name](x)
        return out


def used(i: int, worker: int, optimizer: str) -> set[str]:
    names = {"on_one_rank"} if worker == 1 else set[str]()
    return names | {"sometimes"} if i % 3 == 1 and optimizer == "sgd" else names


def parameters(transport: Transport, task: Task) -> list[float]:
    """The parameters at the end."""
    model = Sometimes()
    rank = Rank(transport, task, model)
    take = rank.take

    def taken(i: int) -> None:
        model.used = used(i, rank.worker, task.optimizer)
        take(i)

    with patch.object(rank, "take", taken):
        for number in range(1, EPOCHS + 1):
            rank.epoch(number)
    found: list[float] = rank.strategy.model().tolist()
    rank.close()
    return found


def of_torch(task: Task, workers: list[int]) -> list[float]:
    """The same by torch, in one process: the mean over the batch, whose parts use the layers that their ranks use."""
    model = Sometimes()
    optimizer = DECAYED[task.optimizer](list(model.parameters()))
    for i in range(EPOCHS * N_STEPS):
        optimizer.zero_grad()
        parts = [task.batch(i, worker) for worker in workers]
        for worker, part in zip(workers, parts, strict=True):
            model.used = used(i, worker, task.optimizer)
            (F.cross_entropy(model(X[part]), Y[part]) * (len(part) / sum(map(len, parts)))).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


@pytest.mark.parametrize("optimizer", DECAYED)
@pytest.mark.parametrize("name", [name for name in SYNCHRONOUS if name in STRATEGIES and not STRATEGIES[name].traits.defaults])
def test_a_synchronous_strategy_leaves_them_as_torch_does(name: str, optimizer: str) -> None:
    task = Task(SYNCHRONOUS[name], n_gpus_of(name, 2), optimizer)
    with patch.dict(OPTIMIZERS, DECAYED):
        for found in run("virtual", parameters, task.n_gpus, task):
            assert found == pytest.approx(of_torch(task, list(range(task.roles.count("worker")))), rel=1e-9, abs=1e-12)
