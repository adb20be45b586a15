"""One run in one order: what it is made of, what the ranks do, and what is recorded of it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from greenlet import GreenletExit

from every_order.problem import Numbers, loss, samples
from every_order.scheduler import Channel, Option, Pick, Scheduler
from every_order.transport import Died, Ordered
from records.recorder import Recorder
from strategies import OptimizerFactory, Replica, Strategy
from strategies.common.builtin import replica_of
from workloads.batches import BatchPlan

LR = 0.1
ACCESSES = ("forward", "update", "communicate")
"""The phases that begin with an access to x, where that is a shared vector."""


@dataclass(frozen=True)
class Case:
    """What is run: each worker takes `steps`, or the server ends an epoch after so many gradients of all workers.

    `own_steps`: the former, also where a server could end an epoch.
    """

    strategy: Strategy
    n_gpus: int
    steps: int
    epochs: int = 1
    own_steps: bool = False
    seed: int = 0
    optimizer: OptimizerFactory | None = None  # by default SGD with `momentum`
    dies: tuple[int, int] | None = None  # a rank, and the number of the send before which it dies

    def __str__(self) -> str:
        s = "s" * (self.workers != 1)
        epochs = "an epoch" if self.epochs == 1 else f"{self.epochs} epochs, each"
        how_long = f"{epochs} of {self.steps} gradients" if self.ends_by_samples else f"{epochs} of {self.steps} steps"
        return f"{self.strategy.name}, {self.workers} worker{s}, {how_long}"

    @cached_property
    def roles(self) -> list[str]:
        """Each rank's role."""
        return self.strategy.roles(self.n_gpus)

    @cached_property
    def workers(self) -> int:
        """How many ranks compute."""
        return self.roles.count("worker")

    @property
    def momentum(self) -> float:
        """That of SGD: none, but where the strategy has a default of its own."""
        return float(self.strategy.traits.defaults.get("momentum", 0.0))

    @cached_property
    def make_optimizer(self) -> OptimizerFactory:
        """What makes the optimizer."""
        return self.optimizer or partial(torch.optim.SGD, lr=LR, momentum=self.momentum)

    @cached_property
    def ends_by_samples(self) -> bool:
        """Whether a server, or the ranks together, end an epoch after `steps` gradients."""
        return self.strategy.traits.asynchronous and not self.own_steps

    @cached_property
    def plan(self) -> BatchPlan:
        """Which sample each worker takes in each step."""
        per_worker = -(-self.steps // self.workers) if self.ends_by_samples else self.steps
        return BatchPlan(per_worker * self.workers, self.workers, self.workers, self.seed)

    @cached_property
    def rows(self) -> torch.Tensor:
        """The samples."""
        return samples(self.plan.n_samples)


@dataclass
class Run:
    """What is recorded of a run in one order.

    `applied` and `dropped`: of whom, the version it was computed on, the version it was applied to. `computed`: by
    rank, the samples whose gradients it has computed. `models`: x of each rank; `model`: what the algorithm calls its
    model, as rank 0 has it. `waiting`: by rank, for what it waited when nothing more could happen.
    """

    case: Case
    scheduler: Scheduler
    replicas: dict[int, Replica] = field(default_factory=dict)
    strategies: dict[int, Strategy] = field(default_factory=dict)
    applied: list[tuple[int, int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    computed: dict[int, list[int]] = field(default_factory=dict)
    models: dict[int, torch.Tensor] = field(default_factory=dict)
    model: torch.Tensor | None = None
    waiting: dict[int, str] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    @property
    def ranks(self) -> list[Ordered]:
        """The transports."""
        return self.scheduler.ranks

    @property
    def happened(self) -> list[Option]:
        """What was decided."""
        return [options[picked] for options, picked in self.scheduler.taken]

    @property
    def departures(self) -> int:
        """How many decisions were not those of the plain order."""
        return sum(picked > 0 for _, picked in self.scheduler.taken)

    @property
    def has_ended(self) -> bool:
        """Whether all ranks have come to their ends."""
        return not self.errors and not self.waiting


class Log(Recorder):
    """Notes what is applied, with its versions, and lets others access a shared x before a phase that does."""

    def __init__(self, run: Run, rank: int) -> None:
        super().__init__(rank, enabled=False)
        self.run = run
        self.time_passes = lambda *_: None  # so that what is done in the backward pass is done after it
        self.access: Callable[[str], None] | None = None

    def add(self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, *more: Any, **versions: Any) -> None:
        """See Recorder."""
        if peer >= 0 and "version_read" in versions:
            log = self.run.dropped if op == "drop" else self.run.applied
            log.append((peer, versions["version_read"], versions["version_applied"]))
        if self.enabled:
            super().add(phase, t0, t1, op, peer, *more, **versions)

    def mark(self, name: str, value: float) -> None:
        """See Recorder."""
        if self.enabled:
            super().mark(name, value)

    @contextmanager
    def phase(self, name: str, part: float = 1.0, work: str = "") -> Iterator[None]:
        """See Recorder."""
        if self.access and name in ACCESSES:
            self.access(f"begins to {name if name != 'forward' else 'read x'}")
        if self.enabled:
            with super().phase(name, part, work):
                yield
        else:
            yield


def run_once(
    case: Case,
    pick: Pick,
    most: Mapping[Channel, int] | None = None,
    reduced: bool = True,
    tell: Callable[[str], None] | None = None,
    events: Path | None = None,
) -> Run:
    """Run the case once, in the order that `pick` decides; see `Scheduler`. `events`: a folder for its records."""
    scheduler = Scheduler(pick, most, reduced, tell, case.dies)
    run, world_size = Run(case, scheduler), len(case.roles)
    for rank in range(world_size):
        log = Log(run, rank)
        if events:
            log.enabled = True
            log.write_to(events / f"rank-{rank}.events")
        scheduler.ranks.append(Ordered(scheduler, rank, world_size, log))
    scheduler.run(partial(_attempt, run))
    return run


def _attempt(run: Run, rank: Ordered) -> None:
    try:
        _work(run, rank)
    except Exception as error:
        run.errors[rank.rank] = error
        run.scheduler.failed = True
    except Died:
        pass
    except GreenletExit:
        run.waiting[rank.rank] = rank.waits_for_what


def _work(run: Run, transport: Ordered) -> None:
    """What a rank does: the loop of `training/loop.py`, without its data, records and scores."""
    case, rank, log = run.case, transport.rank, transport.recorder
    strategy = run.strategies[rank] = dataclasses.replace(case.strategy)
    replica = run.replicas[rank] = replica_of(strategy, Numbers(case.plan.n_samples), transport, case.n_gpus)
    strategy.start(replica, transport, case.make_optimizer, seed=case.seed)
    if transport.is_shared(replica.x):
        log.access = transport.access
    for epoch in range(1, case.epochs + 1):
        log.epoch, t0 = epoch, transport.now()
        if case.ends_by_samples:
            strategy.descent.until = epoch * case.steps
        if case.roles[rank] == "server":
            strategy.serve()
        else:
            for i in _steps(case, strategy, epoch):
                _step(run, transport, strategy, replica, i)
        strategy.finish()
        log.mark("epoch_s", transport.now() - t0)
        with log.evaluating():
            shown = strategy.model()
    if rank == 0:
        run.model = shown.clone()
    run.models[rank] = replica.x.clone()
    if not case.dies:
        transport.barrier()
    transport.check_memory()


def _steps(case: Case, strategy: Strategy, epoch: int) -> Iterator[int]:
    start, stop = (epoch - 1) * case.steps, epoch * case.steps
    return islice(strategy.steps_of_epoch(start, stop), case.steps if case.own_steps else None)


def _step(run: Run, transport: Ordered, strategy: Strategy, replica: Replica, i: int) -> None:
    case, log = run.case, transport.recorder
    log.step = i
    worker = case.roles[: transport.rank].count("worker")
    which = case.plan.part(1 + i // case.plan.n_steps, i % case.plan.n_steps, worker)
    run.computed.setdefault(transport.rank, []).extend(which.tolist())
    strategy.begin_step(len(which))
    with log.phase("forward"):
        value = loss(replica.module, case.rows[which], None)
    replica.backward(value)
    strategy.step(len(which))
