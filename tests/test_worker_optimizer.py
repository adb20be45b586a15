"""A strategy as an optimizer in a script: it is what the strategy does by hand, and says what is wrong."""

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from gradwire.compression import DGC, QSGD, Codec, TopK
from gradwire.core.transports.base import Transport
from gradwire.virtual_time.launcher import Death
from strategies import (
    STRATEGIES,
    AsyncParamServer,
    FullySharded,
    ParamServer,
    RingAllReduce,
    ShardedParamServer,
    Strategy,
    WorkerOptimizer,
)
from tests.ranks import virtual_time
from tests.runs import IN_MEMORY
from tests.strategies.kinds import fit, start
from tests.strategies.loops import N_STEPS, OPTIMIZERS, Rank, Task, X, Y, accuracy, make_model

EPOCHS = 2
NAME = attrgetter("name")
Found = list[list[float]]


def x_of(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def train(
    optimizer: WorkerOptimizer,
    model: nn.Module,
    batches: Iterable[torch.Tensor],
    after_step: Callable[[], None] = lambda: None,
    finishes: bool = True,
) -> None:
    """Serve an epoch, or take a step with each batch."""
    if optimizer.is_server:
        optimizer.serve()
        return
    for batch in batches:
        optimizer.zero_grad()
        optimizer.replica.backward(F.cross_entropy(model(X[batch]), Y[batch]))  # in virtual time it may communicate
        optimizer.step(len(batch))
        after_step()
    if finishes:
        optimizer.finish()


# The same steps


def model_of(transport: Transport) -> nn.Module:
    """The model; zeros on all ranks but rank 0, which gives them its own."""
    model = make_model()
    if transport.rank:
        nn.utils.vector_to_parameters(torch.zeros_like(x_of(model)), model.parameters())
    return model


def by_hand(transport: Transport, task: Task) -> Found:
    """The parameters after each step and each epoch."""
    transport.recorder.epoch = 1
    rank, seen = Rank(transport, task, model_of(transport)), []
    for epoch in range(EPOCHS):
        transport.recorder.epoch = 1 + epoch
        if rank.is_server:
            rank.strategy.serve()
        for i in range(epoch * N_STEPS, 0 if rank.is_server else (epoch + 1) * N_STEPS):
            rank.take(i)
            seen.append(rank.x().tolist())
        rank.strategy.finish()
        seen.append(rank.x().tolist())
    return seen


def by_optimizer(transport: Transport, task: Task, anew: bool = False) -> Found:
    """Likewise; if `anew`, the second epoch is that of another model and optimizer, which continue from the state."""
    model, seen = model_of(transport), Found()
    make = partial(
        WorkerOptimizer, transport=transport, strategy=task.strategy, optimizer=task.suited_optimizer,
        codec=task.codec, scope=task.scope, momentum=task.momentum, seed=task.seed, clip_norm=task.clip_norm,
        schedule=task.schedule,
    )  # fmt: skip
    optimizer = make(model)

    def x_now() -> torch.Tensor:
        return optimizer.strategy.model() if isinstance(task.strategy, FullySharded) else x_of(model)

    assert optimizer.is_server == (task.roles[transport.rank] == "server")
    worker = task.roles[: transport.rank].count("worker")
    for epoch in range(1, EPOCHS + 1):
        assert optimizer.epoch == epoch
        batches = (task.batch(i, worker) for i in range((epoch - 1) * N_STEPS, epoch * N_STEPS))
        train(optimizer, model, batches, lambda: seen.append(x_now().tolist()))
        seen.append(x_of(model).tolist())
        if anew and epoch < EPOCHS:
            state, model = optimizer.state_dict(), make_model()
            transport.recorder.epoch = 0
            optimizer = make(model, state=state)
    assert optimizer.epoch == 1 + EPOCHS
    return seen


CODED: list[tuple[Codec | None, dict[str, Any]]] = [
    (None, {}),
    (QSGD(bucket=8), {"scope": "vector"}),
    (DGC(density=0.1, warmup_epochs=1), {"momentum": 0.9}),
]
SEVERAL = (
    "single", "param_server", "ring_all_reduce", "async_param_server", "backup_workers", "sharded_param_server", "dgs",
    "fully_sharded", "sharded_ring", "overlapped_ring", "local_sgd", "gossip", "ad_psgd", "streaming_diloco", "demo",
)  # fmt: skip
MORE: dict[str, Any] = {"seed": 7, "clip_norm": 1.0, "schedule": lambda processed: 1 / (1 + processed / 50)}
TASKS = [
    pytest.param(
        Task(kind(), fit(kind, 4), "momentum" if kind.traits.defaults.get("momentum") else "plain", codec=codec,
             **MORE | more),
        id=f"{name}-{codec.name if codec else '-'}", marks=[] if name in SEVERAL else pytest.mark.exhaustive,
    )
    for name, kind in STRATEGIES.items()
    for codec, more in (CODED if kind in (ParamServer, RingAllReduce) else CODED[:1])
    if name not in IN_MEMORY and (codec is None or codec.kind in kind.traits.carries)
]  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_it_takes_the_steps_of_the_strategy_by_hand(task: Task) -> None:
    hand, optimizer = (start(type(task.strategy), how, task.n_gpus, task) for how in (by_hand, by_optimizer))
    assert optimizer == hand


@pytest.mark.parametrize(
    ("strategy", "optimizer", "more"),
    [
        (ParamServer(), "muon", {}),
        (ShardedParamServer(), "groups", {}),
        (RingAllReduce(), "momentum", {}),
        (RingAllReduce(), "plain", {"codec": DGC(density=0.1, warmup_epochs=2), "momentum": 0.9}),
    ],
)
def test_it_continues_bit_for_bit_from_its_state(strategy: Strategy, optimizer: str, more: dict[str, Any]) -> None:
    task = Task(strategy, 3, optimizer, schedule=MORE["schedule"], **more)
    whole, parts = (virtual_time(3).launch(by_optimizer, 3, task, anew) for anew in (False, True))
    assert whole == parts


# A death, and a return


def come_back(transport: Transport) -> tuple[int, float]:
    """Where a rank begins, and how it ends; each worker has half of the samples, in batches of 5 that take 10 ms."""
    model, epochs = make_model(), 20
    optimizer = WorkerOptimizer(model, transport, AsyncParamServer(), OPTIMIZERS["plain"], codec=TopK(density=0.25))
    began = optimizer.epoch
    if optimizer.is_server:
        optimizer.serve(epochs)
    else:
        batches = torch.arange(transport.rank - 1, 45, 2).split(5)
        for _ in range(began, epochs + 1):
            train(optimizer, model, batches, lambda: transport.sleep(0.01))
    return began, accuracy(x_of(model))


def test_a_worker_that_is_started_again_begins_with_the_epoch_of_the_server() -> None:
    time = virtual_time(3, [Death(2, 0.2, 0.3)])
    found = time.launch(come_back, 3, roles=AsyncParamServer().roles(3), expendable=[1, 2])
    began = [epoch for epoch, _ in found]
    assert began[:2] == [1, 1]
    assert 1 < began[2] < 20
    assert min(score for _, score in found) > 0.8
