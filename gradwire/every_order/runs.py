"""One run in one order: its case, the work of the ranks, and its record."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradwire.baselines.builtin import Builtin
from gradwire.core.records.errors import UsageError
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.strategy import Strategy
from gradwire.every_order.problem import Numbers, loss, samples
from gradwire.every_order.scheduler import Pick, Scheduler
from gradwire.every_order.transport import InPlace, Ordered
from gradwire.options import Options

LR = 0.1
_MOST_RANKS, _MOST_STEPS = 17, 1000
_PROBLEM = "gradwire.every_order.problem"
ACCESSES = {"forward": "reads x", "update": "updates x", "communicate": "exchanges x"}
"""The phases that begin with an access to x, where that is a shared vector."""


@dataclass
class Case:
    """One case: each worker takes `steps`, or the server ends an epoch after as many gradients of all workers.

    `n_gpus`: None for the fewest with two workers. `own_steps`: each takes its steps also where a server could end an
    epoch. `dies`: a rank, and the number of the send before which it dies. The optimizer is the strategy's default,
    unless another is chosen. Raises UsageError.

    `ends_by_samples`: whether a server, or the ranks together, end an epoch after `steps` gradients. `options`: those
    of a run of `train.py` that is this case. `rows`: the samples; `plan`: which of them a worker takes in each step: of
    workers that keep step the first takes two, the others one. `blocks`: of the model.
    """

    strategy: Strategy
    n_gpus: int | None = None
    steps: int = 2
    epochs: int = 1
    own_steps: bool = False
    seed: int = 0
    dies: tuple[int, int] | None = None
    optimizer: OptimizerFactory | None = None

    def __post_init__(self) -> None:
        strategy, traits = self.strategy, self.strategy.traits
        if isinstance(strategy, Builtin):
            raise UsageError(f"--strategy {strategy.name}: torch itself carries its messages; take another")
        least, most = traits.ranks[0], min(traits.ranks[1] or _MOST_RANKS, _MOST_RANKS)
        if self.n_gpus is None:
            fewest = (n for n in range(least, most + 1) if strategy.roles(n).count("worker") == strategy.fewest_workers)
            self.n_gpus = next(fewest, least)
        check_range("n_gpus", self.n_gpus, least, most, f" with {strategy.name}")
        check_range("steps", self.steps, 1, _MOST_STEPS)
        check_range("epochs", self.epochs, 1, _MOST_STEPS)
        if self.own_steps and not traits.asynchronous:
            raise UsageError(f"--own_steps: workers of {strategy.name} take --steps of their own anyway; leave it out")
        self.roles = strategy.roles(self.n_gpus)
        self.workers = self.roles.count("worker")
        self.ends_by_samples = traits.asynchronous and not self.own_steps
        of_a_step = self.workers + (not traits.asynchronous)
        self.rows = samples((-(-self.steps // self.workers) if self.ends_by_samples else self.steps) * of_a_step)
        self.blocks = 2 if hasattr(strategy, "block_modules") else 1
        network = "network" if self.blocks == 1 else "blocks"
        self.options = Options(
            strategy=strategy, n_gpus=self.n_gpus, epochs=self.epochs, global_batch_size=of_a_step, lr=LR,
            momentum=float(traits.defaults.get("momentum", 0.0)), dataset=f"{_PROBLEM}:of_{len(self.rows)}",
            model=f"{_PROBLEM}:{network}", task=f"{_PROBLEM}:loss", dtype="float64", device="cpu", seed=self.seed,
        )  # fmt: skip
        self.plan = self.options.plan(len(self.rows))
        self.make_optimizer = self.optimizer or self.options.make_optimizer()
        check_strategy(
            strategy, RunSize(len(self.roles), self.workers, self.plan.n_steps, optimizer=self.make_optimizer)
        )

    def __str__(self) -> str:
        what = counted(self.steps, "gradient") if self.ends_by_samples else counted(self.steps, "step") + " of each"
        epochs = f"{self.epochs} epochs, each of" if self.epochs > 1 else "an epoch of"
        return f"{self.strategy.name}, {counted(self.workers, 'worker')}, {epochs} {what}, seed {self.seed}"


class Used(NamedTuple):
    """The fate of a rank's gradient, as a server records it: the update that took it; None: it was dropped."""

    rank: int
    epoch: int
    version: int | None


class Run(Scheduler):
    """A run in one order, and its record beside those of its `Scheduler` and its `ranks`.

    `applied` and `dropped`: the worker, the version it was computed on, the version it was applied to; `used`: both, in
    their order. `model`: the algorithm's model, as rank 0 has it. `shared` vectors by their names, with
    the `accesses` to them, and the `stores` of updates that are a load and a store. `copied`: messages whose waits
    ended before they were taken. `sent_in_steps`: the messages between the starts and the finishes of ranks.
    """

    accesses = stores = sent_in_steps = 0

    def __init__(self, case: Case, pick: Pick, reduced: bool = True, events: Path | None = None) -> None:
        super().__init__(pick, reduced, case.dies)
        self.case = case
        self.applied: list[tuple[int, int, int]] = []
        self.dropped: list[tuple[int, int, int]] = []
        self.used: list[Used] = []
        self.model: torch.Tensor | None = None
        self.shared: dict[str, torch.Tensor] = {}
        self.copied: list[InPlace] = []
        n = len(case.roles)
        self.ranks: list[Ordered] = [Ordered(self, rank, n, _Log(self, rank, events)) for rank in range(n)]

    @property
    def living(self) -> list[Ordered]:
        """The ranks that have not died."""
        return [rank for rank in self.ranks if rank.rank != self.dead]

    @property
    def has_ended(self) -> bool:
        """Whether all that live have come to their ends."""
        return all(rank.ended for rank in self.living)


def check_range(name: str, value: int, least: int, most: int, where: str = "") -> None:
    """Check an option. Raises UsageError."""
    if not least <= value <= most:
        raise UsageError(f"--{name} {value}: must be from {least} to {most}{where}")


def counted(n: int, what: str) -> str:
    """Return a number of things: "1 step", "2 steps"."""
    return f"{n} {what}{'s' * (n != 1)}"


class _Log(Recorder):
    """Notes the applied gradients with their versions, and lets others access a shared x before a phase that does."""

    def __init__(self, run: Run, rank: int, events: Path | None) -> None:
        super().__init__(rank, enabled=events is not None)
        self._run = run
        self.time_passes = self._pass_time  # if set, the work in the backward pass is done after it
        self.access: Callable[[str], None] | None = None
        self.stored: dict[str, int] = {}  # of an update that is a load and a store: the values it loaded and overwrote
        if events:
            self.write_to(events / f"rank-{rank}.events")

    def add(self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, *more: Any, **versions: Any) -> None:
        if peer >= 0 and "version_read" in versions:
            log = self._run.dropped if op == "drop" else self._run.applied
            log.append((peer, versions["version_read"], versions["version_applied"]))
            self._run.used.append(Used(peer, self.epoch, None if op == "drop" else versions["version_applied"]))
        if phase == "update" and self.stored:
            op, versions, self.stored = "store", self.stored, {}
        if self.enabled:
            super().add(phase, t0, t1, op, peer, *more, **versions)

    def phase(self, name: str, part: float = 1.0, work: str = "") -> Any:
        if self.access and name in ACCESSES:
            self.access(ACCESSES[name])
        return super().phase(name, part, work) if self.enabled else nullcontext()

    def _pass_time(self, phase: str, _: float) -> None:
        """Count the access with which a phase has begun."""
        self._run.accesses += bool(self.access) and phase in ACCESSES


def run_once(case: Case, pick: Pick, reduced: bool = True, events: Path | None = None) -> Run:
    """Run the case once, in the order that `pick` decides; see `Scheduler`. `events`: a folder for its records."""
    run = Run(case, pick, reduced, events)
    run.run(partial(_attempt, run))
    if run.has_ended:
        for transport in run.ranks:  # no rank needs its memory before all have come here
            transport.learn([max(clocks) for clocks in zip(*(rank.clock for rank in run.ranks), strict=True)])
            transport.check_memory()
    return run


def _attempt(run: Run, rank: Ordered) -> None:
    try:
        _work(run, rank)
        rank.ended = True
    except Exception as error:
        rank.error, run.failed = error, True


def _work(run: Run, transport: Ordered) -> None:
    """The work of a rank: the loop of `gradwire/core/training/loop.py`, without its data, records and scores."""
    case, rank = run.case, transport.rank
    log: Any = transport.recorder
    strategy = transport.strategy = dataclasses.replace(case.strategy)
    replica = transport.replica = Replica(Numbers(len(case.rows), case.blocks), transport)
    strategy.start(replica, transport, case.make_optimizer, RunSettings(seed=case.seed))
    if transport.is_shared(replica.x):
        log.access = transport.access
    worker, n_steps = case.roles[:rank].count("worker"), case.plan.n_steps
    for epoch in range(1, case.epochs + 1):
        before = len(transport.numbers)
        log.epoch, t0 = epoch, transport.now()
        if case.ends_by_samples:
            strategy.updater.until = epoch * case.steps
        if case.roles[rank] == "server":
            strategy.serve()
        else:
            steps = strategy.steps_of_epoch((epoch - 1) * case.steps, epoch * case.steps)
            for i in islice(steps, case.steps if case.own_steps else None):
                log.step = i
                which = case.plan.part(1 + i // n_steps, i % n_steps, worker)
                transport.computed.append(which.tolist())
                strategy.begin_step(len(which))
                with log.phase("forward"):
                    value = loss(replica.module, case.rows[which], None)
                replica.backward(value)
                strategy.step(len(which))
        run.sent_in_steps += len(transport.numbers) - before
        strategy.finish()
        log.mark("epoch_s", transport.now() - t0)
        with log.evaluating():
            shown = strategy.model()
    if rank == 0:
        run.model = shown.clone()
    transport.check_memory()
