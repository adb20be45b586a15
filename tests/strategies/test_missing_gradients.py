"""Parameters without a gradient keep their value and their state, as in torch: never used, sometimes, on one rank."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire.core.transports.base import Transport
from strategies import STRATEGIES, OptimizerFactory
from tests.strategies.kinds import exact, fit, start
from tests.strategies.loops import N_STEPS, OPTIMIZERS, Rank, Task, X, Y

EPOCHS = 2
NAMES = ("never", "always", "sometimes", "on_one_rank", "zero")
DECAYED: dict[str, OptimizerFactory] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


SAME_STEPS = [
    name
    for name, kind in STRATEGIES.items()
    if kind.__module__.split(".")[1] in ("single", "all_reduce", "synchronous_server") and name != "demo"
]


class Sometimes(nn.Module):
    """Layers that some steps, or some ranks, do not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 3) for _ in NAMES).double()
        self.used: set[str] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the sum of what the layers that are `used` give."""
        of: dict[str, nn.Module] = dict(zip(NAMES, self.layers, strict=True))
        out: torch.Tensor = of["always"](x) - 0 * of["zero"](x)
        for name in sorted(self.used):
            out = out + of[name](x)
        return out


def used(task: Task, i: int, worker: int) -> set[str]:
    names = set[str]()
    if worker == 1 and task.strategy.name != "fully_sharded":  # whose ranks gather the same blocks
        names.add("on_one_rank")
    if i % 3 == 1 and task.optimizer == "sgd":  # AdamW counts the steps of a vector, not of its tensors
        names.add("sometimes")
    return names


def parameters(transport: Transport, task: Task) -> list[float]:
    """The parameters at the end."""
    model = Sometimes()
    rank = Rank(transport, task, model)
    take = rank.take

    def taken(i: int) -> None:
        model.used = used(task, i, rank.worker)
        take(i)

    with patch.object(rank, "take", taken):
        for number in range(1, EPOCHS + 1):
            rank.epoch(number)
    found = rank.x().tolist() if task.strategy.name == "none" else rank.strategy.model().tolist()
    rank.close()
    return list(found)


def of_torch(task: Task, workers: list[int]) -> list[float]:
    """The same by torch, in one process: the mean over the batch, whose parts use the layers that their ranks use."""
    model = Sometimes()
    optimizer: torch.optim.Optimizer = DECAYED[task.optimizer](list(model.parameters()))
    for i in range(EPOCHS * N_STEPS):
        optimizer.zero_grad()
        parts = [task.batch(i, worker) for worker in workers]
        for worker, part in zip(workers, parts, strict=True):
            model.used = used(task, i, worker)
            (F.cross_entropy(model(X[part]), Y[part]) * (len(part) / sum(map(len, parts)))).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


@pytest.mark.parametrize("optimizer", DECAYED)
@pytest.mark.parametrize("name", [*SAME_STEPS, "none"])
def test_they_are_left_as_torch_leaves_them(name: str, optimizer: str) -> None:
    kind = STRATEGIES[name]
    task = Task(exact(kind), fit(kind, 3), optimizer)
    with patch.dict(OPTIMIZERS, DECAYED):
        ranks = start(kind, parameters, task.n_gpus, task)
    workers = range(task.roles.count("worker"))
    for number, found in enumerate(ranks):
        together = [*workers] if name in SAME_STEPS else [number]
        assert found == pytest.approx(of_torch(task, together), rel=1e-9, abs=1e-12)
