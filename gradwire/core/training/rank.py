"""One rank of a run: its part of the data, its model and strategy, and how it computes a gradient."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.tensors import bytes_of
from gradwire.core.strategy.traits import choice_of
from gradwire.core.training.computing import Precision, choose_threads
from gradwire.core.training.options import CoreOptions
from gradwire.core.training.orders import RankResult
from gradwire.core.training.progress import Report
from gradwire.core.training.watchers import Watcher
from gradwire.core.transports.base import Transport
from gradwire.core.workloads import models, tasks
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.loading import Loader


@dataclass
class Position:
    """Where a rank is in its run."""

    done: int = 0  # steps, when the run was resumed
    taken: int = 0  # steps, of this rank
    loss_sum: float = 0.0  # of this epoch's samples
    n: int = 0  # of what their mean losses are means of
    samples: int = 0
    samples_before: int = 0  # of them, those of the run that this one continues

    def begin_epoch(self) -> None:
        """Forget the samples of the epoch before."""
        self.loss_sum, self.n, self.samples, self.samples_before = 0.0, 0, 0, 0


class Rank:
    """One rank of a run."""

    def __init__(
        self, transport: Transport, report: Callable[[Report], None], options: CoreOptions, data: Data, stack: ExitStack
    ) -> None:
        self.transport = transport
        self.recorder = transport.recorder
        self.report = report
        self.options = options
        self.data = data
        self.stack = stack
        self.watchers: Sequence[Watcher] = ()
        self.task, self.per_sample = tasks.find(data.task), data.n_per_sample
        self.plan = options.plan(data.n_train)
        roles = options.roles
        self.is_server = roles[transport.rank] == "server"
        # Its number among the workers; one process has whole batches.
        self.part = None if transport.world_size == 1 else roles[: transport.rank].count("worker")
        self.strategy = dataclasses.replace(options.strategy)  # of this rank's own, where ranks share a process
        self.counts_samples = self.is_server and "server" not in roles[: transport.rank]  # the first of all servers
        self.precision = Precision(options.amp, transport.device)
        self.position = Position()
        self.state: dict[str, Any] | None = None  # of the strategy, to continue from
        device, dtype = transport.device, options.torch_dtype
        fetch = options.make_fetcher(data, device)
        self.loader = Loader(data, fetch, self.plan, self.part, options.accumulate, device, dtype)

    def tell(self, moment: str, *args: Any) -> None:
        """Tell all watchers of a moment, by the name of their method."""
        for watcher in self.watchers:
            getattr(watcher, moment)(self, *args)

    def start(self) -> None:
        """Make the model and give the strategy its run, from the beginning or from a state."""
        transport, options, strategy = self.transport, self.options, self.strategy
        self._first = tasks.first_of(self.data.n_train)
        self.model = models.seeded(options.model, self.data, options.seed, options.torch_dtype, options.model_options)
        self.model.to(transport.device)
        if transport.device.type == "cpu" and not self.is_server:
            start, stop = self.plan.bounds(0, self.part)
            choose_threads(self.model, self._small_pass, (stop - start) // options.accumulate / len(self._first))
        self.tell("before_start")
        self.replica = replica = strategy.make_replica(self.model, transport, options.n_gpus or 1)
        schedule = options.make_schedule(self.data.n_train * self.per_sample)
        told: dict[str, Any] = {"schedule": schedule, "after_update": lambda: self.end_step(strategy.updater.version)}
        settings = dataclasses.replace(options.settings(), **told)
        strategy.start(replica, transport, options.make_optimizer(), settings, self.state, **options.start_arguments())
        if options.amp == "fp16" and replica.is_watched:
            raise UsageError(
                f"--amp fp16: {strategy.name} uses gradients in the backward pass, before they can be unscaled; take "
                "--amp bf16"
            )
        if self.recorder.shares_of and replica.is_watched:
            self.recorder.shares = self.recorder.shares_of(self.model, self._small_pass)
        self.tell("after_start")

    def _small_pass(self) -> None:
        """Compute on the samples on which the task was checked."""
        self.task(self.model, *self.data.fetch(self._first, "train", self.transport.device, self.options.torch_dtype))

    def gradient(self, i: int) -> tuple[float, int]:
        """Leave the gradient of the mean loss over the part of step `i` in the model; return that loss and its n.

        Before the pieces are computed, n is taken to be `expected`; if it is not, what the first ones gave is scaled.
        """
        phase, replica = self.recorder.phase, self.replica
        pieces = len(self.loader.pieces(i))
        start, stop = self.plan.bounds(i % self.plan.n_steps)
        expected = self.per_sample * self.n_samples(i)
        n, total = 0, 0.0
        for k in range(pieces):
            with phase("data"):
                x, y = self.loader.piece(i, k)
            self.tell("batch_ready", x, y)
            is_last = k == pieces - 1
            replica.begin_microbatch(expected, self.per_sample * (stop - start), is_last)
            if is_last:
                self.strategy.begin_step(expected)
            with phase("forward"), self.precision.autocast():
                loss, n_k, _ = self.task(replica.module, x, y)
                n += n_k
                loss = loss * (n_k / (n if is_last else expected))
                total = total * (expected / n if is_last else 1) + loss.item()
            if is_last and self.task.n_varies:
                replica.rescale(n, expected)
                self.strategy.begin_step(self.weight(i, n))
            with phase("backward"):
                replica.backward(self.precision.scaler.scale(loss))
        return total, n

    def n_samples(self, i: int) -> int:
        """Return how many samples this worker's part of step `i` has."""
        start, stop = self.plan.bounds(i % self.plan.n_steps, self.part)
        return stop - start

    def weight(self, i: int, n: int) -> int:
        """Return the weight and the count of the gradient of step `i`, a mean over `n`.

        Where it is applied alone there is nothing to weight: then it counts its samples, with which an epoch ends.
        """
        return self.per_sample * self.n_samples(i) if self.strategy.traits.asynchronous else n

    def end_step(self, step: int) -> None:
        """End step `step` of a worker, or a server's update, the first being 1."""
        if self.task.n_varies and not self.strategy.traits.asynchronous:
            # The schedule counts the samples of the plan, whatever their n.
            epochs, rest = divmod(step, self.plan.n_steps)
            samples = epochs * self.data.n_train + rest * self.plan.global_batch_size
            self.strategy.updater.processed = samples * self.per_sample
        self.tell("end_step", step)

    def end(self) -> RankResult:
        """Ask the watchers, and return the result."""
        found = {watcher.name: watcher.end_run(self) for watcher in reversed(self.watchers)}
        return result_of(self.strategy, self.replica, self.transport, found)


def result_of(
    strategy: Strategy, replica: Replica, transport: Transport, found: dict[str, Any] | None = None
) -> RankResult:
    """Return the result of a rank, which gives back what its training has taken."""
    recorder = transport.recorder
    replica.close()
    events = recorder.close()
    return RankResult(
        transport.rank,
        events if transport.same_machine else events.carry(),
        hashlib.sha256(bytes_of(replica.tensors()).numpy().tobytes()).hexdigest()[:16],
        strategy.state_bytes,
        transport.inbox.arrivals,
        list(recorder.deaths),
        transport.alignment,
        torch.get_num_threads(),
        choice_of(strategy),
        recorder.applied,
        {name: value for name, value in (found or {}).items() if value is not None},
    )
