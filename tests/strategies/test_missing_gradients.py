"""A parameter that no rank has a gradient for in a step keeps its value and its state in it, as in plain torch."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from gradwire.compression import Codec
from gradwire.core.strategy.worker_optimizer import WorkerOptimizer
from gradwire.core.transports.base import Transport
from strategies import AsyncParamServer, Hogwild, NoCommunication, OptimizerFactory, Strategy
from tests.strategies.kinds import exact, fit, start
from tests.strategies.loops import N_STEPS, Task, X, Y

Optimizer = pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
MAKE: dict[str, OptimizerFactory] = {
    "sgd": partial(torch.optim.SGD, lr=0.2, momentum=0.9, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1),
}
EPOCHS = 2


class Branches(nn.Module):
    """A network whose caller says which of its branches it takes; the last is always taken, times 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)
        self.branches = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))
        self.double()

    def forward(self, x: torch.Tensor, taken: Sequence[int]) -> torch.Tensor:
        x = self.first(x).tanh()
        x = x + 0 * self.branches[3](x)
        for i in taken:
            x = x + self.branches[i](x).tanh()
        return self.last(x)


def taken(step: int, worker: int, workers: int) -> list[int]:
    """Branch 0 never; branch 1 by one worker; branch 2 in some steps, by one worker or another."""
    return [2] * (step % 3 == 1 and worker == step % workers) + [1] * (worker == 0)


def loss_of(model: nn.Module, task: Task, step: int, worker: int) -> tuple[torch.Tensor, int]:
    """The mean loss over a worker's part of a batch, and its samples."""
    part = task.batch(step, worker)
    return F.cross_entropy(model(X[part], taken(step, worker, task.plan.workers)), Y[part]), len(part)


def by_torch(task: Task, make: OptimizerFactory, workers: Sequence[int]) -> torch.Tensor:
    """The parameters after each step of one process on the batches of these workers, [steps, n]."""
    model, seen = Branches(), []
    optimizer = make([*model.parameters()])
    for step in range(EPOCHS * N_STEPS):
        optimizer.zero_grad()
        losses = [loss_of(model, task, step, worker) for worker in workers]
        torch.stack([loss * n for loss, n in losses]).sum().div(sum(n for _, n in losses)).backward()
        optimizer.step()
        seen.append(parameters_to_vector(model.parameters()).detach())
    return torch.stack(seen)


def by_strategy(transport: Transport, task: Task, make: OptimizerFactory, resumed: bool) -> list[list[float]]:
    """Likewise, of a worker; `resumed`: its second epoch is that of another model, which continues from the state."""
    state, seen = None, []
    worker = task.roles[: transport.rank].count("worker")
    for epoch in range(EPOCHS):
        if resumed or not epoch:
            model = Branches()
            optimizer = WorkerOptimizer(model, transport, task.strategy, make, codec=task.codec, state=state)
        if optimizer.is_server:
            optimizer.serve()
        else:
            for step in range(epoch * N_STEPS, (epoch + 1) * N_STEPS):
                optimizer.zero_grad()
                loss, n = loss_of(model, task, step, worker)
                optimizer.replica.backward(loss)
                optimizer.step(n)
                agrees = task.strategy.traits.agree and not task.strategy.traits.asynchronous
                seen.append((optimizer.strategy.model() if agrees else optimizer.replica.x).tolist())
            optimizer.finish()
        state = optimizer.state_dict()
    return seen


def compare(strategy: Strategy, n_gpus: int, optimizer: str, resumed: bool = False, codec: Codec | None = None) -> None:
    make, task = MAKE[optimizer], Task(strategy, n_gpus, codec=codec)
    ranks = start(type(strategy), by_strategy, n_gpus, task, make, resumed)
    for worker, seen in enumerate(ranks[-task.roles.count("worker") :]):
        workers = [worker] if strategy.name == "none" else range(task.plan.workers)
        found, expected = torch.tensor(seen, dtype=torch.float64), by_torch(task, make, workers)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@Optimizer
@pytest.mark.parametrize("resumed", [False, True])
def test_the_steps_are_those_of_torch(synchronous: type[Strategy], optimizer: str, resumed: bool) -> None:
    compare(exact(synchronous), fit(synchronous, 4), optimizer, resumed)


@Optimizer
@pytest.mark.parametrize(("alone", "n_gpus"), [(NoCommunication(), 3), (AsyncParamServer(), 2), (Hogwild(), 1)])
def test_the_steps_of_one_worker_are_those_of_torch(alone: Strategy, n_gpus: int, optimizer: str) -> None:
    compare(alone, n_gpus, optimizer)
