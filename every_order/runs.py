"""One run in one order: what it is made of, what the ranks do, and what is recorded of it."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from greenlet import GreenletExit

from every_order.problem import Numbers, loss, samples
from every_order.scheduler import Pick, Scheduled, Scheduler
from every_order.transport import Died, Ordered
from records.recorder import Recorder
from strategies import OptimizerFactory, Strategy
from strategies.common.builtin import replica_of
from training.optimizers import factory
from workloads.batches import BatchPlan

LR = 0.1
ACCESSES = {"forward": "reads x", "update": "updates x", "communicate": "exchanges x"}
"""The phases that begin with an access to x, where that is a shared vector."""


@dataclass(frozen=True)
class Case:
    """What is run: each worker takes `steps`, or the server ends an epoch after so many gradients of all workers.

    `own_steps`: the former, also where a server could end an epoch. `dies`: a rank, and the number of the send before
    which it dies. The optimizer is the strategy's default, if it is not another one.
    """

    strategy: Strategy
    n_gpus: int
    steps: int
    epochs: int = 1
    own_steps: bool = False
    seed: int = 0
    dies: tuple[int, int] | None = None
    optimizer: OptimizerFactory | None = None

    def __str__(self) -> str:
        what = counted(self.steps, "gradient") if self.ends_by_samples else counted(self.steps, "step") + " of each"
        epochs = f"{self.epochs} epochs, each of" if self.epochs > 1 else "an epoch of"
        return f"{self.strategy.name}, {counted(self.workers, 'worker')}, {epochs} {what}, seed {self.seed}"

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
        name = self.strategy.traits.defaults.get("optimizer", "sgd")
        return self.optimizer or factory(name, LR, self.momentum, 0.0, ())

    @cached_property
    def ends_by_samples(self) -> bool:
        """Whether a server, or the ranks together, end an epoch after `steps` gradients."""
        return self.strategy.traits.asynchronous and not self.own_steps

    @cached_property
    def plan(self) -> BatchPlan:
        """Which sample each worker takes in each step."""
        steps = -(-self.steps // self.workers) if self.ends_by_samples else self.steps
        return BatchPlan(steps * self.workers, self.workers, self.workers, self.seed)

    @cached_property
    def rows(self) -> torch.Tensor:
        """The samples."""
        return samples(self.plan.n_samples)


@dataclass
class Run(Scheduled):
    """What is recorded of a run in one order: what its ranks have, and what its scheduler has.

    `applied` and `dropped`: of whom, the version it was computed on, the version it was applied to. `model`: what the
    algorithm calls its model, as rank 0 has it.
    """

    case: Case
    applied: list[tuple[int, int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    model: torch.Tensor | None = None

    def pass_time(self, phase: str, _: float) -> None:
        """Count the access to a shared x with which a phase has begun, for the clocks of the records."""
        self.scheduler.accesses += phase in ACCESSES

    @property
    def ranks(self) -> list[Ordered]:
        """The ranks, a dead one too."""
        return self.scheduler.ranks

    @property
    def living(self) -> list[Ordered]:
        """The ranks that have not died."""
        return [rank for rank in self.ranks if rank.rank != self.scheduler.dead]

    @property
    def has_ended(self) -> bool:
        """Whether all that live have come to their ends."""
        return all(rank.ended for rank in self.living)


def counted(n: int, what: str) -> str:
    """Return a number of things: "1 step", "2 steps"."""
    return f"{n} {what}{'s' * (n != 1)}"


class _Log(Recorder):
    """Notes what is applied, with its versions, and lets others access a shared x before a phase that does."""

    def __init__(self, run: Run, rank: int, events: Path | None) -> None:
        super().__init__(rank, enabled=events is not None)
        self._run = run
        self.time_passes = lambda *_: None  # so that what is done in the backward pass is done after it
        self.access: Callable[[str], None] | None = None
        self.stored: dict[str, int] = {}  # of an update that is a load and a store: what it loaded, and overwrote
        if events:
            self.write_to(events / f"rank-{rank}.events")

    def add(self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, *more: Any, **versions: Any) -> None:
        """See Recorder."""
        if peer >= 0 and "version_read" in versions:
            log = self._run.dropped if op == "drop" else self._run.applied
            log.append((peer, versions["version_read"], versions["version_applied"]))
        if phase == "update" and self.stored:
            op, versions, self.stored = "store", self.stored, {}
        if self.enabled:
            super().add(phase, t0, t1, op, peer, *more, **versions)

    def phase(self, name: str, part: float = 1.0, work: str = "") -> Any:
        """See Recorder."""
        if self.access and name in ACCESSES:
            self.access(ACCESSES[name])
        return super().phase(name, part, work) if self.enabled else nullcontext()


def run_once(
    case: Case,
    pick: Pick,
    reduced: bool = True,
    tell: Callable[[str], None] | None = None,
    events: Path | None = None,
) -> Run:
    """Run the case once, in the order that `pick` decides; see `Scheduler`. `events`: a folder for its records."""
    scheduler = Scheduler(pick, reduced, tell, case.dies)
    run, world_size = Run(scheduler, case), len(case.roles)
    for rank in range(world_size):
        scheduler.ranks.append(Ordered(scheduler, rank, world_size, _Log(run, rank, events)))
    scheduler.run(partial(_attempt, run))
    if run.has_ended:
        for one in run.ranks:  # nobody needs its memory before all have come here
            one.learn([max(clocks) for clocks in zip(*(rank.clock for rank in run.ranks), strict=True)])
            one.check_memory()
    return run


def _attempt(run: Run, rank: Ordered) -> None:
    try:
        _work(run, rank)
        rank.ended = True
    except Exception as error:
        rank.error, run.scheduler.failed = error, True
    except (Died, GreenletExit):
        pass


def _work(run: Run, transport: Ordered) -> None:
    """What a rank does: the loop of `training/loop.py`, without its data, records and scores."""
    case, log = run.case, transport.recorder
    strategy = transport.strategy = dataclasses.replace(case.strategy)
    replica = transport.replica = replica_of(strategy, Numbers(case.plan.n_samples), transport, case.n_gpus)
    strategy.start(replica, transport, case.make_optimizer, seed=case.seed)
    if isinstance(log, _Log) and transport.is_shared(replica.x):
        log.access = transport.access
        log.time_passes = run.pass_time
    for epoch in range(1, case.epochs + 1):
        log.epoch, t0 = epoch, transport.now()
        if case.ends_by_samples:
            strategy.descent.until = epoch * case.steps
        if case.roles[transport.rank] == "server":
            strategy.serve()
        else:
            steps = strategy.steps_of_epoch((epoch - 1) * case.steps, epoch * case.steps)
            for i in islice(steps, case.steps if case.own_steps else None):
                _step(case, transport, i)
        strategy.finish()
        if log.enabled:
            log.mark("epoch_s", transport.now() - t0)
        with log.evaluating():
            shown = strategy.model()
    if transport.rank == 0:
        run.model = shown.clone()
    transport.check_memory()


def _step(case: Case, transport: Ordered, i: int) -> None:
    log, strategy, replica = transport.recorder, transport.strategy, transport.replica
    log.step = i
    worker, n_steps = case.roles[: transport.rank].count("worker"), case.plan.n_steps
    which = case.plan.part(1 + i // n_steps, i % n_steps, worker)
    transport.computed += which.tolist()
    strategy.begin_step(len(which))
    with log.phase("forward"):
        value = loss(replica.module, case.rows[which], None)
    replica.backward(value)
    strategy.step(len(which))
