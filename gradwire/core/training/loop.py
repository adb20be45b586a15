"""The loop of one rank, the same for all strategies: train or serve, epoch by epoch, and measure."""

import dataclasses
import math
import platform
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from gradwire.baselines.builtin import Builtin, replica_of
from gradwire.checkpoints import files, replay
from gradwire.checkpoints.saved import RankResult, Saved, result_of
from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.strategy.replica import layout_of, trained
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.traits import choice_of
from gradwire.core.training.evaluation import REPORTER, evaluate_for_all
from gradwire.core.training.options import Options
from gradwire.core.training.passes import Precision, Straggler, choose_threads, shares_of
from gradwire.core.transports.base import Transport
from gradwire.core.workloads import models, tasks
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.loading import LOADERS, Loader
from gradwire.diagnosis.hashes import Hashes
from gradwire.diagnosis.memory import Memory
from gradwire.pictures.scalars import Scalars

_REPORT_S = 0.1


def train_rank(
    transport: Transport, report: Callable[[Any], None], options: Options, data: Data, events: Path, checkpoints: Path
) -> RankResult:
    """Run one rank of the run.

    `report` is given ("choice", text), ("step", steps done) and ("score", (name, value)) of the epoch. `events` and
    `checkpoints` are folders of the first process's machine.
    Raises RunFailed if the loss is not finite; PeerLost, WaitTimeout.
    """
    near = transport.same_machine
    if not near and transport.rank == 0 and options.checkpoint_every and not checkpoints.is_dir():
        raise UsageError(f"--checkpoint_dir: {platform.node()}, where rank 0 runs, does not see {checkpoints}")
    with (
        nullcontext(events) if near else tempfile.TemporaryDirectory() as folder,
        Memory(transport.recorder) if options.memory else nullcontext(),
    ):
        transport.recorder.write_to(Path(folder, f"rank-{transport.rank}.events"))
        report = report if transport.rank == REPORTER else lambda value: None
        rank = _Rank(transport, report, options, data, checkpoints)
        rank.start()
        with rank.loader:
            # A checkpoint after the last step of an epoch was written before its evaluation, so it is ended again.
            for epoch in range(max(1, transport.recorder.epoch), options.epochs + 1):
                rank.run_epoch(epoch)
        if rank.scalars:
            rank.scalars.close()
        if rank.hashes and not rank.is_server:
            rank.hashes.end(trained(rank.model))
        hashes = rank.hashes.arrays() if rank.hashes else {}
        return result_of(rank.strategy, rank.replica, transport, options, data, hashes)


class _Rank:
    """One rank of a run."""

    def __init__(
        self, transport: Transport, report: Callable[[Any], None], options: Options, data: Data, checkpoints: Path
    ) -> None:
        self.transport = transport
        self.recorder = transport.recorder
        self.report = report
        self.options = options
        self.data = data
        self.task, self.per_sample = tasks.find(data.task), data.n_per_sample
        self.plan = options.plan(data.n_train)
        roles = options.roles
        self.is_server = roles[transport.rank] == "server"
        # Its number among the workers; one process has whole batches.
        self.part = None if transport.world_size == 1 else roles[: transport.rank].count("worker")
        self.strategy = dataclasses.replace(options.strategy)  # of this rank's own, where ranks share a process
        self.counts_samples = self.is_server and "server" not in roles[: transport.rank]  # the first of all servers
        target = files.Target(checkpoints, options.checkpoint_keep, options.recorded(), roles)
        self.precision = Precision(options.amp, transport.device)
        self.saved = Saved(transport, self.strategy, target, options.resume, self.precision)
        factor = options.slowdowns.get(transport.rank, 1.0)
        self.straggler = Straggler(factor, options.jitter, options.seed + transport.rank, transport)
        device, dtype = transport.device, options.torch_dtype
        fetch = LOADERS[options.loader].make(data, options.loader_workers, device, die_with_parent)
        self.loader = Loader(data, fetch, self.plan, self.part, options.accumulate, device, dtype)
        self._first = tasks.first_of(data.n_train)
        self.reported = 0.0
        place = Path(options.tensorboard or "", str(options.run_name), f"rank-{transport.rank}")
        self.scalars = Scalars(self.recorder, place) if options.tensorboard else None
        self.hashes: Hashes | None = None

    def start(self) -> None:
        """Make the model and give the strategy its run, from the beginning or from a checkpoint."""
        transport, options, strategy = self.transport, self.options, self.strategy
        self.model = models.seeded(options.model, self.data, options.seed, options.torch_dtype, options.model_options)
        self.model.to(transport.device)
        if self.recorder.memory:
            self.recorder.memory.watch(self.model)
        if transport.device.type == "cpu" and not self.is_server:
            start, stop = self.plan.bounds(0, self.part)
            choose_threads(self.model, self._small_pass, (stop - start) // options.accumulate / len(self._first))
        if options.replay:
            of_ranks = replay.load(options.replay).arrivals
            if any(of_rank := of_ranks[transport.rank : transport.rank + 1]):
                transport.inbox.replay = iter(of_rank[0])
        state = self.saved.load()
        self.replica = replica = replica_of(strategy, self.model, transport, options.n_gpus or 1)
        schedule = options.make_schedule(self.data.n_train * self.per_sample)
        after_update = lambda: self.after_step(strategy.descent.version)  # noqa: E731
        settings = RunSettings(options.clip_norm, schedule, options.seed, options.graph, after_update)
        strategy.start(replica, transport, options.make_optimizer(), settings, state, options.make_codec())
        if choice := choice_of(strategy):
            self.report(("choice", choice.text()))
        if options.hashes:
            self.hashes = Hashes(layout_of(self.model))
            strategy.descent.before_update = partial(self.hashes.update, strategy.descent)
        if options.amp == "fp16" and replica.is_watched:
            raise UsageError(
                f"--amp fp16: {strategy.name} uses gradients in the backward pass, before they can be unscaled; take "
                "--amp bf16"
            )
        if self.straggler.is_slow and not self.recorder.time_passes:
            replica.interruption = self.straggler.interrupted
        if self.recorder.time_passes and replica.is_watched:
            self.recorder.shares = shares_of(self.model, self._small_pass)

    def _small_pass(self) -> None:
        """Compute on the samples on which the task was checked."""
        self.task(self.model, *self.data.fetch(self._first, "train", self.transport.device, self.options.torch_dtype))

    def run_epoch(self, epoch: int) -> None:
        """Train or serve for one epoch, and evaluate."""
        recorder, strategy, n_steps = self.recorder, self.strategy, self.plan.n_steps
        recorder.epoch = epoch
        if recorder.memory:
            recorder.memory.begin_training()
        strategy.descent.until = epoch * self.data.n_train * self.per_sample
        t0, samples = self.transport.now(), strategy.descent.samples
        if self.is_server:
            strategy.serve()
        else:
            self.train((epoch - 1) * n_steps, epoch * n_steps)
        strategy.finish()
        if not strategy.traits.asynchronous:
            recorder.step = epoch * n_steps
        elif not self.is_server:
            recorder.step = self.saved.position.taken
        recorder.mark("epoch_s", self.transport.now() - t0)
        if self.counts_samples:
            recorder.mark("samples", round((strategy.descent.samples - samples) / self.per_sample))
        recorder.mark_codes()
        self.report(("step", max(epoch * n_steps, self.progress())))
        with recorder.evaluating():
            score = evaluate_for_all(
                self.transport, self.task, self.model, strategy.model(), self.loader.test_batches()
            )
        if score is not None:
            if not math.isfinite(score.loss):
                raise RunFailed(
                    f"the loss on the held-out set is {score.loss} after epoch {epoch}, step {n_steps} of "
                    f"{n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
                )
            recorder.mark("test_loss", score.loss)
            scores = {name: value for name, value in score.scores.items() if name not in self.task.unrecorded}
            for name, value in scores.items():
                recorder.mark(f"test_{name}", value)
            self.report(("score", next(iter(scores.items()), ("loss", score.loss))))
        for name, value in recorder.meters.items():
            recorder.mark(name, value)
        if self.scalars:
            self.scalars.tick(recorder.step, self.strategy.descent.rate, now=True)

    def train(self, start: int, stop: int) -> None:
        """Take this worker's part of the batches of the steps `start` to `stop` - 1, an epoch's."""
        recorder, plan, strategy, at = self.recorder, self.plan, self.strategy, self.saved.position
        if at.done <= start:
            at.begin_epoch()
        self.replica.module.train()
        for i in strategy.steps_of_epoch(max(start, at.done), stop):
            recorder.step = i
            if recorder.memory:
                recorder.memory.begin_step()
            loss, n = self.gradient(i)
            while not self.precision.unscale(trained(self.model)):
                loss, n = self.gradient(i)
            if not math.isfinite(loss):
                raise RunFailed(
                    f"the loss became {loss} in epoch {1 + i // plan.n_steps}, step {i % plan.n_steps + 1} of "
                    f"{plan.n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
                )
            if self.hashes:
                x = trained(self.model)
                is_sent = isinstance(strategy, Builtin) or self.replica.is_watched  # and changed, in the backward pass
                self.hashes.gradient(i, x, [None if is_sent else p.grad for p in x], n)
            strategy.step(self.weight(i, n))
            at.loss_sum += loss * n
            at.n += n
            at.samples += self.n_samples(i)
            at.taken = i + 1
            if self.scalars:
                self.scalars.take("loss", loss)
            self.after_step(i + 1)
        if recorder.memory:
            recorder.memory.end_step()
        if strategy.traits.asynchronous:
            # What follows belongs to the last step, if others ended the epoch before its first.
            recorder.step = max(0, at.taken - 1)
        recorder.mark("samples", at.samples - at.samples_before)
        if at.n:
            recorder.mark("train_loss", at.loss_sum / at.n)

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
            if self.hashes:
                self.hashes.batch(x, y)
            is_last = k == pieces - 1
            replica.begin_piece(expected, self.per_sample * (stop - start), is_last)
            if is_last:
                self.strategy.begin_step(expected)
            with phase("forward"), self.straggler.stretched(), self.precision.autocast():
                loss, n_k, _ = self.task(replica.module, x, y)
                n += n_k
                loss = loss * (n_k / (n if is_last else expected))
                total = total * (expected / n if is_last else 1) + loss.item()
            if is_last and self.task.n_varies:
                replica.recount(n, expected)
                self.strategy.begin_step(self.weight(i, n))
            with phase("backward"), self.straggler.stretched():
                replica.backward(self.precision.scaler.scale(loss))
        return total, n

    def n_samples(self, i: int) -> int:
        """Return how many samples this worker's part of step `i` has."""
        start, stop = self.plan.bounds(i % self.plan.n_steps, self.part)
        return stop - start

    def weight(self, i: int, n: int) -> int:
        """Return what the gradient of step `i`, a mean over `n`, is weighted with, and counted by.

        Where it is applied alone there is nothing to weight: then it counts its samples, with which an epoch ends.
        """
        return self.per_sample * self.n_samples(i) if self.strategy.traits.asynchronous else n

    def after_step(self, step: int) -> None:
        """Write a checkpoint if one is due; report the progress, at intervals."""
        if self.task.n_varies and not self.strategy.traits.asynchronous:
            # The schedule counts the samples of the plan, whatever their n.
            epochs, rest = divmod(step, self.plan.n_steps)
            samples = epochs * self.data.n_train + rest * self.plan.global_batch_size
            self.strategy.descent.processed = samples * self.per_sample
        if self.options.checkpoint_every and step % self.options.checkpoint_every == 0:
            self.saved.write(step)
        if self.scalars:
            self.scalars.tick(step, self.strategy.descent.rate)
        if self.transport.now() - self.reported > _REPORT_S:
            self.reported = self.transport.now()
            self.report(("step", self.progress()))

    def progress(self) -> int:
        """Return how many steps of the whole run the samples processed so far are worth."""
        done = round(self.plan.n_steps * self.strategy.descent.processed / (self.data.n_train * self.per_sample))
        return min(done, self.plan.n_steps * self.options.epochs)
