"""The loop of one rank, the same for all strategies: train or serve, epoch by epoch, and measure."""

import copy
import math
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.tensors import trained
from gradwire.core.training.evaluation import evaluate_for_all
from gradwire.core.training.orders import Orders, RankResult
from gradwire.core.training.progress import REPORTER, Report
from gradwire.core.training.rank import Rank
from gradwire.core.transports.base import Transport
from gradwire.core.workloads.data import Data


def train_rank(transport: Transport, report: Callable[[Report], None], orders: Orders, data: Data) -> RankResult:
    """Run one rank of the run, and tell the watchers; `report` reaches the launching process from the reporter alone.

    Raises RunFailed if the loss is not finite; PeerLost, WaitTimeout.
    """
    recorder, options = transport.recorder, orders.options
    with ExitStack() as stack:
        rank = Rank(transport, report if transport.rank == REPORTER else lambda _: None, options, data, stack)
        rank.watchers = [copy.copy(watcher) for watcher in orders.watchers]  # of this rank's own
        rank.tell("begin_run")
        same = transport.same_machine
        folder = orders.events if same else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorder.write_to(folder / f"rank-{transport.rank}.events")
        rank.start()
        with rank.loader:
            # A checkpoint after the last step of an epoch was written before its evaluation, so it is ended again.
            for epoch in range(max(1, recorder.epoch), options.epochs + 1):
                run_epoch(rank, epoch)
        return rank.end()


def run_epoch(rank: Rank, epoch: int) -> None:
    """Train or serve for one epoch, and evaluate."""
    recorder, strategy, n_steps = rank.recorder, rank.strategy, rank.plan.n_steps
    recorder.epoch = epoch
    rank.tell("begin_epoch")
    strategy.updater.until = epoch * rank.data.n_train * rank.per_sample
    t0, samples = rank.transport.now(), strategy.updater.samples
    if rank.is_server:
        strategy.serve()
    else:
        take_steps(rank, (epoch - 1) * n_steps, epoch * n_steps)
    rank.tell("end_steps", epoch)
    strategy.finish()
    if not strategy.traits.asynchronous:
        recorder.step = epoch * n_steps
    elif not rank.is_server:
        recorder.step = rank.position.taken
    recorder.mark("epoch_s", rank.transport.now() - t0)
    if rank.counts_samples:
        recorder.mark("samples", round((strategy.updater.samples - samples) / rank.per_sample))
    recorder.mark_codes()
    score = evaluate_epoch(rank, epoch)
    for name, value in recorder.meters.items():
        recorder.mark(name, value)
    rank.tell("end_epoch", score)


def take_steps(rank: Rank, start: int, stop: int) -> None:
    """Take this worker's part of the batches of the steps `start` to `stop` - 1, an epoch's."""
    recorder, plan, strategy, at = rank.recorder, rank.plan, rank.strategy, rank.position
    if at.done <= start:
        at.begin_epoch()
    rank.replica.module.train()
    for i in strategy.steps_of_epoch(max(start, at.done), stop):
        recorder.step = i
        rank.tell("begin_step", i)
        loss, n = rank.gradient(i)
        while not rank.precision.unscale(trained(rank.model)):
            loss, n = rank.gradient(i)
        if not math.isfinite(loss):
            raise RunFailed(
                f"the loss became {loss} in epoch {1 + i // plan.n_steps}, step {i % plan.n_steps + 1} of "
                f"{plan.n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
            )
        rank.tell("gradient_ready", i, loss, n)
        strategy.step(rank.weight(i, n))
        at.loss_sum += loss * n
        at.n += n
        at.samples += rank.n_samples(i)
        at.taken = i + 1
        rank.end_step(i + 1)
    if strategy.traits.asynchronous:
        # What follows belongs to the last step, if others ended the epoch before its first.
        recorder.step = max(0, at.taken - 1)
    recorder.mark("samples", at.samples - at.samples_before)
    if at.n:
        recorder.mark("train_loss", at.loss_sum / at.n)


def evaluate_epoch(rank: Rank, epoch: int) -> tuple[str, float] | None:
    """Evaluate the strategy's model and record that; return a score by name, on the reporter. Raises RunFailed."""
    recorder, n_steps = rank.recorder, rank.plan.n_steps
    with recorder.evaluating():
        shown = rank.strategy.model()
        found = evaluate_for_all(rank.transport, rank.task, rank.model, shown, rank.loader.test_batches())
    if found is None:
        return None
    if not math.isfinite(found.loss):
        raise RunFailed(
            f"the loss on the held-out set is {found.loss} after epoch {epoch}, step {n_steps} of "
            f"{n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
        )
    recorder.mark("test_loss", found.loss)
    scores = {name: value for name, value in found.scores.items() if name not in rank.task.unrecorded}
    for name, value in scores.items():
        recorder.mark(f"test_{name}", value)
    return next(iter(scores.items()), ("loss", found.loss))
