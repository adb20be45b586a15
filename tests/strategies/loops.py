"""What a rank does in the suites: a loop of its own, without `gradwire.core.training`, on a data set of 47 samples."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gradwire.baselines.builtin import Builtin
from gradwire.compression import Codec, Layout, Setting
from gradwire.compression.coding import CodecFactory, codec_factory, coded
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import check_strategy
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.traits import Coded
from gradwire.core.strategy.updater import Schedule
from gradwire.core.transports.base import Transport
from gradwire.core.workloads.batches import BatchPlan
from strategies import OptimizerFactory, RunSize, Strategy
from strategies.all_reduce.fully_sharded import FullySharded
from tests.workload import by_muon, in_groups

N_SAMPLES, BATCH = 47, 12  # batches of 12, 12, 12, 11
N_STEPS = 4
X = torch.randn(N_SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X @ torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).argmax(1)
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "plain": partial(torch.optim.SGD, lr=0.3),
    "soft": partial(torch.optim.SGD, lr=0.2, momentum=0.5),
    "decayed": partial(torch.optim.SGD, lr=0.2, momentum=0.5, weight_decay=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.3, momentum=0.9),
    "sgd": partial(torch.optim.SGD, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "groups": in_groups,
    "muon": by_muon,
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "unit": partial(torch.optim.SGD, lr=1.0),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


@dataclass(frozen=True)
class Task:
    """A strategy, and how it is run."""

    strategy: Strategy
    n_gpus: int
    optimizer: str = "sgd"
    clip_norm: float = 0.0
    epochs: int = 3
    codec: Codec | None = None
    scope: str = "tensor"
    momentum: float = 0.0  # of the codec
    seed: int = 0  # of the codec
    schedule: Schedule | None = None

    @property
    def roles(self) -> list[str]:
        return self.strategy.roles(self.n_gpus)

    @property
    def suited_optimizer(self) -> OptimizerFactory:
        """The optimizer; one that the strategy takes, where it does not take this one."""
        for name in (self.optimizer, "plain", "soft"):
            if self._refuses(None) or not self._refuses(OPTIMIZERS[name]):  # the former for other reasons
                return OPTIMIZERS[name]
        return OPTIMIZERS["adam"]

    def _refuses(self, optimizer: OptimizerFactory | None) -> bool:
        try:
            check_strategy(self.strategy, dataclasses.replace(self.size, optimizer=optimizer))
        except UsageError:
            return True
        return False

    @property
    def make_codec(self) -> CodecFactory | None:
        workers = self.roles.count("worker")
        return codec_factory(self.codec, Setting(self.scope, self.seed, workers=workers, momentum=self.momentum))

    def coded(self, layout: Layout, like: torch.Tensor) -> Coded | None:
        """What a closed form is told of the codec."""
        return coded(self.strategy.cost(), self.make_codec, layout, like, 1)

    @property
    def plan(self) -> BatchPlan:
        return BatchPlan(N_SAMPLES, self.strategy.count_workers(self.n_gpus), BATCH, seed=3)

    def batch(self, i: int, worker: int) -> torch.Tensor:
        """The samples of a worker's step `i`, counted over all epochs."""
        where = 1 + i // N_STEPS, i % N_STEPS
        return self.plan.part(*where) if len(self.roles) == 1 else self.plan.part(*where, worker)

    @property
    def size(self) -> RunSize:
        return RunSize(len(self.roles), self.roles.count("worker"), N_STEPS)


class Rank:
    """One rank of a task."""

    def __init__(
        self, transport: Transport, task: Task, model: nn.Module | None = None, state: dict[str, Any] | None = None
    ) -> None:
        self.transport, self.task, self.plan = transport, task, task.plan
        self.is_server = task.roles[transport.rank] == "server"
        self.worker = transport.rank - task.roles.index("worker")
        self.strategy = dataclasses.replace(task.strategy)
        self.replica = self.strategy.make_replica(make_model() if model is None else model, transport, task.n_gpus)
        settings = RunSettings(task.clip_norm, task.schedule, task.seed)
        if isinstance(self.strategy, Builtin):
            self.strategy.start(self.replica, transport, OPTIMIZERS[task.optimizer], settings)
        else:
            self.strategy.start(self.replica, transport, task.suited_optimizer, settings, state, task.make_codec)
        self.module = self.replica.module

    def x(self) -> torch.Tensor:
        """This rank's own parameters [n], copied."""
        elsewhere = isinstance(self.strategy, Builtin | FullySharded)
        return (self.strategy.model() if elsewhere else self.replica.x).clone()

    def epoch(self, number: int, after_step: Callable[[], None] = lambda: None) -> None:
        """Train or serve for one epoch, from 1 on."""
        self.transport.recorder.epoch = number
        self.strategy.updater.until = number * N_SAMPLES
        if self.is_server:
            self.strategy.serve()
        else:
            for i in self.strategy.steps_of_epoch((number - 1) * N_STEPS, number * N_STEPS):
                self.take(i)
                after_step()
        self.strategy.finish()

    def take(self, i: int) -> None:
        """Take step `i`, counted over all epochs."""
        batch = self.plan.part(1 + i // N_STEPS, i % N_STEPS)
        part = self.task.batch(i, self.worker)
        self.replica.begin_microbatch(len(part), len(batch), is_last=True)
        self.replica.backward(F.cross_entropy(self.module(X[part]), Y[part]))
        self.strategy.step(len(part))

    def constant_step(self, gradient: float, n_samples: int) -> None:
        """Take a step with a gradient whose elements are all the same."""
        for parameter in self.replica.parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        self.strategy.step(n_samples)

    def constant_epoch(
        self, gradient: float, n_samples: int, steps: int = 1, after_step: Callable[[], None] = lambda: None
    ) -> None:
        """Serve, or take so many such steps; end the epoch."""
        if self.is_server:
            self.strategy.serve()
        else:
            for _ in range(steps):
                self.constant_step(gradient, n_samples)
                after_step()
        self.strategy.finish()

    def stop(self) -> None:
        """End in the middle of an epoch, as a test may."""
        self.transport.owes = ""

    def close(self) -> None:
        if isinstance(self.strategy, Builtin):
            self.strategy.close()
        self.transport.barrier()


def trajectories(transport: Transport, tasks: list[Task]) -> list[list[list[float]]]:
    """For each task, one after the other, the parameters after every step; on a server: after every epoch."""
    return [_trajectory(Rank(transport, task)) for task in tasks]


def _trajectory(rank: Rank) -> list[list[float]]:
    seen: list[list[float]] = []
    for number in range(1, rank.task.epochs + 1):
        rank.epoch(number, lambda: seen.append(rank.x().tolist()))
        if rank.is_server:
            seen.append(rank.x().tolist())
    rank.close()
    return seen


def accuracy(x: torch.Tensor) -> float:
    """The share of the 47 samples that the parameters `x` [n] classify rightly."""
    model = make_model()
    nn.utils.vector_to_parameters(x, model.parameters())
    return (model(X).argmax(1) == Y).double().mean().item()
