"""A parameter that no rank has a gradient for in a step keeps its value and its state in it, as in plain torch."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from gradwire.compression import QSGD, Codec, Float16, TopK
from gradwire.core.transports.base import Transport
from gradwire.worker_optimizer import WorkerOptimizer
from strategies import (
    AsyncParamServer,
    FullySharded,
    Hogwild,
    NoCommunication,
    OptimizerFactory,
    ParamServer,
    RingAllReduce,
    ShardedGradients,
    Strategy,
)
from tests.strategies.kinds import exact, fit, start
from tests.strategies.loops import N_STEPS, Task, X, Y

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


def by_torch(tasks: Sequence[Task], make: OptimizerFactory, worker: int | None = None) -> torch.Tensor:
    """The parameters after each step of one process on the batches of all workers, or of one, [steps, n]."""
    model, seen = Branches(), []
    optimizer = make([*model.parameters()])
    for step in range(len(tasks) * N_STEPS):
        task = tasks[step // N_STEPS]
        workers = range(task.plan.workers) if worker is None else [worker]
        optimizer.zero_grad()
        losses = [loss_of(model, task, step, worker) for worker in workers]
        torch.stack([loss * n for loss, n in losses]).sum().div(sum(n for _, n in losses)).backward()
        optimizer.step()
        seen.append(parameters_to_vector(model.parameters()).detach())
    return torch.stack(seen)


def by_strategy(
    transport: Transport, task: Task, make: OptimizerFactory, epochs: range, state: dict[str, Any] | None = None
) -> tuple[list[list[float]], dict[str, Any]]:
    """Likewise, of a worker, in these epochs, and the state that it ends with."""
    model, seen = Branches(), []
    optimizer = WorkerOptimizer(model, transport, task.strategy, make, codec=task.codec, state=state)
    worker = task.roles[: transport.rank].count("worker")
    for epoch in epochs:
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
    return seen, optimizer.state_dict()


def continued(transport: Transport, task: Task, make: OptimizerFactory) -> list[list[float]]:
    """Each epoch with another model and optimizer, which continue from the state."""
    first, state = by_strategy(transport, task, make, range(1))
    return first + by_strategy(transport, task, make, range(1, EPOCHS), state)[0]


def assert_close(found: list[list[float]], expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-9, atol=1e-12)


def test_the_steps_are_those_of_torch(synchronous: type[Strategy]) -> None:
    make, task = MAKE["adamw"], Task(exact(synchronous), fit(synchronous, 4))
    assert_close(start(synchronous, continued, task.n_gpus, task, make)[-1], by_torch([task] * EPOCHS, make))


@pytest.mark.parametrize(
    ("strategy", "codec"),
    [(ParamServer(), TopK(density=1.0)), (ParamServer(), QSGD(bucket=8)), (RingAllReduce(), Float16())],
    ids=attrgetter("name"),
)
def test_a_code_tells_it_too(strategy: Strategy, codec: Codec) -> None:
    make, task = MAKE["sgd"], Task(strategy, 4, codec=codec)
    seen, _ = start(type(strategy), by_strategy, 4, task, make, range(EPOCHS))[-1]
    names = [name for name, p in Branches().named_parameters() for _ in range(p.numel())]
    told = [isinstance(codec, TopK) or name.startswith(("branches.0", "branches.3")) for name in names]  # exactly
    expected = by_torch([task] * EPOCHS, make)
    torch.testing.assert_close(
        torch.tensor(seen, dtype=torch.float64)[:, told], expected[:, told], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(("sharded", "gather_checkpoints"), [(ShardedGradients, True), (FullySharded, False)])
def test_another_number_of_ranks_continues(sharded: type[ShardedGradients], gather_checkpoints: bool) -> None:
    make, first, second = MAKE["adamw"], *(Task(sharded(gather_checkpoints=gather_checkpoints), n) for n in (3, 2))
    states = [state for _, state in start(sharded, by_strategy, 3, first, make, range(1))]
    state = states[0] | {"ranks": states[:1] if gather_checkpoints else states}
    seen, _ = start(sharded, by_strategy, 2, second, make, range(1, 2), state)[0]
    assert_close(seen, by_torch([first, second], make)[N_STEPS:])


@pytest.mark.parametrize("optimizer", MAKE)
@pytest.mark.parametrize(("alone", "n_gpus"), [(NoCommunication(), 3), (AsyncParamServer(), 2), (Hogwild(), 1)])
def test_the_steps_of_one_worker_are_those_of_torch(alone: Strategy, n_gpus: int, optimizer: str) -> None:
    make, task = MAKE[optimizer], Task(alone, n_gpus)
    ranks = start(type(alone), by_strategy, n_gpus, task, make, range(EPOCHS))
    for worker, (seen, _) in enumerate(ranks[-task.plan.workers :]):
        assert_close(seen, by_torch([task] * EPOCHS, make, worker))
