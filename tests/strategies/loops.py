"""What a rank does in the suites: a loop of its own, with nothing of `training/`, on a data set of 47 samples."""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compression import Codec, Layout, Setting
from compression.dgs import check_sgd
from records.errors import UsageError
from strategies import OptimizerFactory, RunSize, Strategy
from strategies.all_reduce.fully_sharded import FullySharded
from strategies.common.builtin import Builtin, replica_of
from strategies.common.coding import CodecFactory, codec_factory, coded
from strategies.common.descent import Schedule
from strategies.common.traits import Coded
from tests.ranks import LIMIT, launch, virtual_time
from tests.workload import by_muon, in_groups
from transports.base import Transport
from workloads.batches import BatchPlan

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
        """The optimizer; SGD with momentum where the strategy takes no other."""
        made = OPTIMIZERS[self.optimizer]
        if self.strategy.cost().code is None:
            return made
        try:
            check_sgd(made([nn.Parameter(torch.zeros(1))]), self.strategy.name)
        except UsageError:
            return OPTIMIZERS["soft"]
        return made

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
        self.replica = replica_of(self.strategy, make_model() if model is None else model, transport, task.n_gpus)
        if isinstance(self.strategy, Builtin):
            self.strategy.start(self.replica, transport, OPTIMIZERS[task.optimizer], task.clip_norm)
        else:
            arguments = (task.suited_optimizer, task.clip_norm, task.schedule, state)
            self.strategy.start(self.replica, transport, *arguments, codec=task.make_codec)
        self.module = self.replica.module

    def x(self) -> torch.Tensor:
        """This rank's own parameters [n], copied."""
        elsewhere = isinstance(self.strategy, Builtin | FullySharded)
        return (self.strategy.model() if elsewhere else self.replica.x).clone()

    def epoch(self, number: int, after_step: Callable[[], None] = lambda: None) -> None:
        """Train or serve for one epoch, from 1 on."""
        self.transport.recorder.epoch = number
        self.strategy.descent.until = number * N_SAMPLES
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
        loss = F.cross_entropy(self.module(X[part]), Y[part])
        if isinstance(self.strategy, Builtin):
            loss = loss * self.strategy.loss_weight(len(part), len(batch))
        self.replica.backward(loss)
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


def on_ranks(
    task: Task, work: Callable[[Rank], Any], make: Callable[[], nn.Module] = make_model, **options: Any
) -> list[Any]:
    """Call `work(rank)` on each rank of the task, which may end in the middle of an epoch; return the results."""

    def whole(transport: Transport) -> Any:
        rank = Rank(transport, task, make())
        found = work(rank)
        rank.stop()
        rank.close()
        return found

    return start(type(task.strategy), whole, len(task.roles), **options)


def assert_same(one: Task, other: Task, rtol: float = 0.0, steps: int | None = None) -> None:
    """Both have the same parameters after every step (the first so many), to the bit or nearly; of a single, a worker.

    A server has them after every epoch.
    """
    found = [start(type(task.strategy), trajectories, len(task.roles), [task]) for task in (one, other)]
    for ours, theirs in zip(*map(reversed, found), strict=False):
        x, expected = (torch.tensor(seen[0][:steps], dtype=torch.float64) for seen in (ours, theirs))
        torch.testing.assert_close(x, expected, rtol=rtol, atol=rtol / 100)


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


# Which runs there are


EXACT: dict[str, dict[str, Any]] = {"backup_workers": {"n_backup": 0}}  # else the order of arrival decides


def exact(kind: type[Strategy]) -> Strategy:
    """The strategy with the options with which it takes the steps of one process."""
    return kind(**EXACT.get(kind.name, {}))


def allows(strategy: Strategy, n_gpus: int) -> bool:
    """Whether the strategy runs on so many processes: it may refuse some numbers."""
    try:
        strategy.check(Task(strategy, n_gpus).size)
    except UsageError:
        return False
    return True


def fit(kind: type[Strategy], n_gpus: int) -> int:
    """The number of processes nearest to `n_gpus` that the strategy can be, of two the smaller."""
    least, most = kind.traits.ranks
    numbers = range(least, 1 + (most or 2 * n_gpus + least))
    return min((n for n in numbers if allows(exact(kind), n)), key=lambda n: abs(n - n_gpus))


def is_virtual(kind: type[Strategy]) -> bool:
    """Whether its ranks can run in virtual time: they share no memory, and torch does not carry their messages."""
    size = dataclasses.replace(Task(exact(kind), fit(kind, 4)).size, shared_memory=False)
    try:
        exact(kind).check(size)
    except UsageError:
        return False
    return not issubclass(kind, Builtin)


def start(kind: type[Strategy], work: Callable[..., Any], n: int, *args: Any, **options: Any) -> list[Any]:
    """Run `work(transport, *args)` on n ranks: in virtual time, or in processes where the strategy needs them."""
    launcher: Callable[..., list[Any]] = virtual_time(n).launch if is_virtual(kind) else launch
    return launcher(work, n, *args, timeout=LIMIT, **options)


def sizes(kind: type[Strategy]) -> Iterator[int]:
    """Each number of processes that makes 1 to 4 workers, and that the strategy allows."""
    least, most = kind.traits.ranks
    for n_gpus in range(least, 1 + (most or 8)):
        if 1 <= exact(kind).count_workers(n_gpus) <= 4 and allows(exact(kind), n_gpus):
            yield n_gpus


def with_workers(kind: type[Strategy], most: int) -> int:
    """The largest number of processes that makes at most so many workers."""
    return [n_gpus for n_gpus in sizes(kind) if exact(kind).count_workers(n_gpus) <= most][-1]


NEEDS: dict[str, dict[str, Any]] = {
    "outer_lr": {"outer_optimizer": "nesterov"},
    "outer_momentum": {"outer_optimizer": "nesterov"},
}


def other_value(strategy: Strategy, option: str) -> int | float | str:
    """A value, not the one that it has, that the strategy accepts for the option in a small run."""
    if isinstance(had := getattr(strategy, option), bool):
        return not had
    if option == "block_modules":
        return "2"  # of `make_model`
    for value in ("nesterov", "average", "exponential", "ring") if isinstance(had, str) else (2, 0.5, 1, 3, 0.25):
        other = dataclasses.replace(strategy, **{option: value} | NEEDS.get(option, {}))
        with contextlib.suppress(UsageError):
            other.check(RunSize(4, 3, 4))
            if getattr(other, option) != getattr(strategy, option):
                return value
    raise AssertionError(f"{strategy.name} accepts no number for {option}: give this function one")


def variants(kind: type[Strategy], n_gpus: int) -> list[Strategy]:
    """The strategy with its defaults, its exact options, its int options at 2 and at 3, and each away from its default.

    Only those that so many processes may be.
    """
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if hints[field.name] in (int, int | None)]
    settings = [{}, EXACT.get(kind.name, {}), *(dict.fromkeys(names, value) for value in (2, 3))]
    for option in dataclasses.fields(kind):
        with contextlib.suppress(AssertionError):  # another option may fix this one, as in `own`
            settings.append({option.name: other_value(kind(), option.name)} | NEEDS.get(option.name, {}))
    settings.append({name: 2 + place % 2 for place, name in enumerate(names)})
    found: list[Strategy] = []
    for options in settings:
        strategy = kind(**options)
        if allows(strategy, n_gpus) and strategy not in found:
            found.append(strategy)
    return found


EXHAUSTIVE = pytest.mark.parametrize("exhaustive", [False, pytest.param(True, marks=pytest.mark.exhaustive)])


def some(strategies: list[Strategy], all_of_them: bool) -> list[Strategy]:
    """All, or the first of them, with its defaults, and the last, with other values of its options."""
    return strategies if all_of_them else strategies[:1] + strategies[1:][-1:]


def determined_variants(kind: type[Strategy], n_gpus: int) -> list[Strategy]:
    """Those of them whose result the order of arrival does not decide."""
    found = variants(kind, n_gpus)
    return [
        one for one in found if not kind.traits.asynchronous and (not kind.traits.workers_may_die or one == exact(kind))
    ]
