"""Loops with a WorkerOptimizer: `launch` in a rank of a script is that rank's part of the job, beside those of others.

What the strategy does with the gradients is not watched, but taken from its class: where all replicas take each step by
the mean of all gradients, that mean is computed here, and so the rules for other scripts apply.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from gradwire.checking.seen import MEAN, SERVER, STRATEGY, Run, common
from gradwire.core.launchers import local
from gradwire.core.launchers.devices import as_before, set_up
from gradwire.core.launchers.failures import do_work
from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import NOTHING
from gradwire.core.transports.inbox import Tags
from gradwire.core.transports.messages import Setup
from gradwire.torch_scripts.threads import here
from gradwire.torch_scripts.virtual_rank import VirtualRank
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.ranks import Ranks
from gradwire.virtual_time.transport import Simulated
from gradwire.worker_optimizer import WorkerOptimizer


def ways_of(strategy: Strategy) -> set[str]:
    """Return how the steps of a strategy are taken."""
    traits = strategy.traits
    if strategy.cost().worker == NOTHING:
        return set()
    is_mean = traits.agree and traits.steps_by_mean and not traits.asynchronous and strategy.period == 1
    return {STRATEGY} | ({MEAN} if is_mean else set()) | ({SERVER} if traits.server_updates else set())


def take_means(run: Run) -> None:
    """Let each step of a WorkerOptimizer take the mean that the gradients of its group have, weighted by samples."""
    for group in run.groups():
        total = sum(step.samples for step in group)
        for _, each in common(group) if STRATEGY in group[0].how and total else ():
            taken = [p.taken for p in each if p.taken is not None]
            if len(taken) == len(each):
                shares = [step.samples for step in group]
                mean = np.average(taken, axis=0, weights=shares)
                for p in each:
                    p.taken = mean


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the groups of an optimizer; of one whose server has the settings, the parameters."""
    try:
        return optimizer.param_groups
    except UsageError:
        assert isinstance(optimizer, WorkerOptimizer)
        return [{"params": optimizer.replica.parameters}]


def is_of_strategy() -> bool:
    """Return whether the optimizer whose hook calls this is stepped by a strategy."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch.optim."):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("gradwire", "strategies")


class Launches:
    """The jobs that a script launches, one after another, on all ranks; `begin` is called before each."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._begun: list[_Launch] = []
        self._counts = Counter[int]()  # by rank

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """Return (owner, name, value) of each attribute that is replaced while a script is watched."""
        in_processes, in_virtual_time = local.launch, VirtualTime.run
        return [
            (local, "launch", lambda job: self._run(job, partial(in_processes, job))),
            (VirtualTime, "run", lambda time, job: self._run(job, partial(in_virtual_time, time, job))),
        ]

    def _run(self, job: Job, really: Callable[[], list[Any]]) -> list[Any]:
        """Do this rank's part; return the results of all."""
        rank = here()
        if not isinstance(rank, VirtualRank):
            return really()
        n = len(rank.engine.ranks)
        if job.world_size != n:
            raise RunFailed(f"launch(work, {job.world_size}): there are {n} ranks; give --n_gpus {job.world_size}")
        if self._counts[rank.rank] == len(self._begun):
            self._begin()
            self._begun.append(_Launch(Ranks(rank.engine.world, n)))
        launch = self._begun[self._counts[rank.rank]]
        self._counts[rank.rank] += 1
        with as_before():
            transport = rank.ask(partial(_Transport, rank, launch, set_up(job, rank.rank, cores=1)))
            # A message finds the transport of its receiver.
            self._change(rank, lambda: len(launch.ranks.transports) == n)
            try:
                result = do_work(job, transport, job.on_report and partial(job.on_report, rank.rank))
            except UsageError as error:
                raise RunFailed(f"rank {rank.rank}: {error}") from error
            transport.close()
        launch.results[rank.rank] = result
        self._change(rank, lambda: len(launch.results) == n)
        return [launch.results[i] for i in range(n)]

    @staticmethod
    def _change(rank: VirtualRank, ready: Callable[[], bool]) -> None:
        rank.ask(partial(rank.engine.changed, rank))
        rank.wait_until(ready, "launch")


@dataclass
class _Launch:
    ranks: Ranks
    results: dict[int, Any] = field(default_factory=dict)
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)  # that ranks share


class _Transport(Simulated):
    """`Transport` of a rank that is a thread: what suspends it is done on the hub."""

    def __init__(self, thread: VirtualRank, launch: _Launch, setup: Setup) -> None:
        self._thread, self._vectors = thread, launch.vectors
        super().__init__(launch.ranks, thread.rank, setup.device, setup.recorder, rejoined=False)
        self.recorder.time_passes = None  # a thread can be suspended in a backward pass, as a process can

    @property
    def clock(self) -> float:
        """That of the thread."""
        return self._thread.clock

    @clock.setter
    def clock(self, time: float) -> None:
        self._thread.clock = max(self._thread.clock, time)

    @override
    def wait_for(self, src: int, tags: Tags, released: str | None = None) -> None:
        def wait() -> None:
            self._thread.pass_time()
            Simulated.wait_for(self, src, tags, released)

        self._wanted = (src, tags, released)
        self._thread.waits_in = self.waits_for
        self._thread.ask(wait)
        self._thread.waits_in = ""

    @override
    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        return self._vectors.setdefault(name, torch.zeros(numel, dtype=dtype))

    @override
    def catch_up(self) -> None:
        self._thread.pass_time()
        self._thread.ask(partial(Simulated.catch_up, self))
