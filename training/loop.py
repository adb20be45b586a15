"""The loop of one rank, the same for all strategies: train or serve, epoch by epoch, and measure."""

import dataclasses
import hashlib
import io
import math
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from checkpoints import files, replay
from checkpoints.folder import latest
from launchers.parent import die_with_parent
from records.errors import RunFailed, UsageError, one_line
from records.events import CarriedEvents, EventFile
from strategies import Replica
from strategies.common.builtin import Builtin
from strategies.common.replica import bytes_of, float_buffers, other_tensors, parameters_from, trained
from training.evaluation import Score, evaluate
from training.layers import choose_threads, shares_of
from training.options import Options
from training.stragglers import Straggler
from transports.base import PeerLost, Transport, WaitTimeout
from transports.messages import Alignment
from workloads import models
from workloads.datasets import Data
from workloads.loading import Loader, fetcher

REPORTER = 0  # evaluates `model()`, which is the same on every rank, and reports the progress; it must not be one
# that may die
_REPORT_S = 0.1


@dataclass(frozen=True)
class Job:
    """What all ranks of a run are told: its options, and where they write, on the machine of the first process."""

    options: Options
    folder: Path  # of what the run has not finished
    checkpoints: Path


@dataclass
class RankResult:
    """What a rank returns: its events, a hash of its module's state; the reporter also the model to be saved."""

    rank: int
    events: EventFile | CarriedEvents
    parameter_hash: str
    optimizer_bytes: int  # the memory of the optimizer's state on this rank
    saved_model: bytes | None
    arrivals: Sequence[int]  # whose messages came, in their order, where that decides the result
    deaths: list[dict[str, Any]]  # of a server: of its workers, where it continues without them
    alignment: Alignment | None  # where the ranks may run on several machines
    threads: int  # that compute
    applied: str  # of a server that records the staleness of what it applies: "gradient" or "push"


def build_model(options: Options, data: Data) -> nn.Module:
    """Return the model with the initial weights of `options.seed`. Raises UsageError."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return models.build(options.model, data.input_shape, data.n_classes).to(options.torch_dtype)


def train_rank(transport: Transport, report: Callable[[Any], None], job: Job, data: Data) -> RankResult:
    """Be one rank of the run; `report` is given ("step", steps done) and ("accuracy", of the epoch).

    Raises RunFailed if the loss is not finite; PeerLost, WaitTimeout.
    """
    if transport.same_machine:
        return _train(transport, report, job, data, job.folder)
    if transport.rank == 0 and job.options.checkpoint_every and not job.checkpoints.is_dir():
        raise UsageError(f"--checkpoint_dir: {platform.node()}, where rank 0 runs, does not see {job.checkpoints}")
    with tempfile.TemporaryDirectory() as folder:
        return _train(transport, report, job, data, Path(folder))


def _train(transport: Transport, report: Callable[[Any], None], job: Job, data: Data, folder: Path) -> RankResult:
    """Be one rank, whose events lie in `folder` until it ends."""
    options = job.options
    transport.recorder.write_to(folder / f"rank-{transport.rank}.events")
    rank = _Rank(transport, report if transport.rank == REPORTER else lambda value: None, job, data)
    rank.start()
    with rank.loader:
        # A checkpoint after the last step of an epoch was written before its evaluation, so that epoch is ended again.
        for epoch in range(max(1, transport.recorder.epoch), options.epochs + 1):
            rank.run_epoch(epoch)
    return rank.result()


class _Rank:
    """One rank of a run."""

    def __init__(self, transport: Transport, report: Callable[[Any], None], job: Job, data: Data) -> None:
        self.transport = transport
        self.recorder = transport.recorder
        self.report = report
        self.options = options = job.options
        self.checkpoints = job.checkpoints
        self.data = data
        self.plan = options.plan(data.n_train)
        roles = options.roles
        self.is_server = roles[transport.rank] == "server"
        self.worker = roles[: transport.rank].count("worker")  # its number among the workers
        self.strategy = dataclasses.replace(options.strategy)  # of this rank's own, where ranks share a process
        serving = [rank for rank, role in enumerate(roles) if role == "server"]
        self.counts_samples = transport.rank in serving[:1]  # of several servers, whose steps take in the same ones
        # Ranks that do not keep step never come to the same checkpoint: then few have all of it.
        self.few_have_state = self.strategy.traits.workers_may_die or self.strategy.traits.asynchronous
        self.ranks_with_state = (serving or [REPORTER]) if self.few_have_state else list(range(len(roles)))
        factor = options.slowdowns.get(transport.rank, 1.0)
        self.straggler = Straggler(factor, options.jitter, options.seed + transport.rank, transport)
        fetch = fetcher(data, options.loader, options.loader_workers, transport.device, die_with_parent)
        part = None if transport.world_size == 1 else self.worker
        self.loader = Loader(
            data, fetch, self.plan, part, options.accumulate, transport.device, options.torch_dtype
        )  # fmt: skip
        self.done = 0  # steps, when the run was resumed
        self.taken = 0  # steps, of this rank
        self.reported = 0.0
        self.loss_sum = 0.0  # of this epoch's samples
        self.samples = 0
        self.samples_before = 0  # of them, those of the run that this one continues

    def start(self) -> None:
        """Make the model and give the strategy its run, from the beginning or from a checkpoint."""
        transport, options, strategy = self.transport, self.options, self.strategy
        self.model = self.module = build_model(options, self.data).to(transport.device)
        if transport.device.type == "cpu" and not self.is_server:
            start, stop = self.plan.bounds(0) if transport.world_size == 1 else self.plan.part_bounds(0, self.worker)
            choose_threads(self.model, self._one_input(), (stop - start) // options.accumulate)
        if self.is_server and options.replay:
            transport.replay = iter(replay.load(options.replay).arrivals)
        arguments = (options.make_optimizer(), options.clip_norm, options.make_schedule(self.data.n_train))
        state = None
        if options.resume and not transport.rejoined and transport.rank in self.ranks_with_state:
            state = self._load(options.resume)
        try:
            if isinstance(strategy, Builtin):
                self.module = strategy.wrap(self.model, transport, options.n_gpus or 1, *arguments, state)
            else:
                replica = Replica(self.model, transport)
                strategy.start(
                    replica, transport, *arguments, state, self.after_update, options.make_codec(), options.seed
                )
                if self.straggler.is_slow and not self.recorder.time_passes:
                    replica.interruption = self.straggler.interrupted
                if self.recorder.time_passes and replica.is_watched:
                    self.recorder.shares = shares_of(self.model, self._one_input())
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if state is None or isinstance(error, PeerLost):
                raise
            raise self._foreign(options.resume, error) from error

    def _one_input(self) -> torch.Tensor:
        """Return the first input [1, ...] of the training set."""
        first = torch.zeros(1, dtype=torch.int64)
        return self.data.fetch(first, "train", self.transport.device, self.options.torch_dtype)[0]

    def run_epoch(self, epoch: int) -> None:
        """Train or serve for one epoch, and evaluate."""
        recorder, strategy, n_steps = self.recorder, self.strategy, self.plan.n_steps
        recorder.epoch = epoch
        strategy.descent.until = epoch * self.data.n_train
        t0, samples = self.transport.now(), strategy.descent.samples
        if self.is_server:
            strategy.serve()
        else:
            self.train((epoch - 1) * n_steps, epoch * n_steps)
        strategy.finish()
        if not strategy.traits.asynchronous:
            recorder.step = epoch * n_steps
        elif not self.is_server:
            recorder.step = self.taken
        recorder.mark("epoch_s", self.transport.now() - t0)
        if self.counts_samples:
            recorder.mark("samples", strategy.descent.samples - samples)
        recorder.mark_codes()
        self.report(("step", max(epoch * n_steps, self.progress())))
        with recorder.evaluating():
            score = self.evaluate()
        if score is not None:
            if not math.isfinite(score.loss):
                raise RunFailed(
                    f"the loss on the held-out set is {score.loss} after epoch {epoch}, step {n_steps} of "
                    f"{n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
                )
            recorder.mark("test_loss", score.loss)
            recorder.mark("test_accuracy", score.top1)
            self.report(("accuracy", score.top1))
        for name, value in recorder.meters.items():
            recorder.mark(name, value)

    def train(self, start: int, stop: int) -> None:
        """Take this worker's part of the batches of the steps `start` to `stop` - 1, an epoch's."""
        recorder, plan, strategy = self.recorder, self.plan, self.strategy
        if self.done <= start:
            self.loss_sum, self.samples, self.samples_before = 0.0, 0, 0
        self.module.train()
        for i in strategy.steps_of_epoch(max(start, self.done), stop):
            recorder.step = i
            loss, n = self.gradient(i)
            if not math.isfinite(loss):
                raise RunFailed(
                    f"the loss became {loss} in epoch {1 + i // plan.n_steps}, step {i % plan.n_steps + 1} of "
                    f"{plan.n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
                )
            strategy.step(n)
            self.loss_sum += loss * n
            self.samples += n
            self.taken = i + 1
            self.after_step(i + 1)
        if strategy.traits.asynchronous:
            # What follows belongs to the last step, if others ended the epoch before its first.
            recorder.step = max(0, self.taken - 1)
        recorder.mark("samples", self.samples - self.samples_before)
        if self.samples:
            recorder.mark("train_loss", self.loss_sum / self.samples)

    def gradient(self, i: int) -> tuple[float, int]:
        """Leave the gradient of the mean loss over the part of step `i` in the model; return that loss, its samples."""
        phase, builtin = self.recorder.phase, self.strategy if isinstance(self.strategy, Builtin) else None
        pieces = [len(piece.indices) for piece in self.loader.pieces(i)]
        start, stop = self.plan.bounds(i % self.plan.n_steps)
        n, total = sum(pieces), 0.0
        weight = builtin.loss_weight(n, stop - start) if builtin else 1.0
        for k, size in enumerate(pieces):
            with phase("data"):
                x, y = self.loader.piece(i, k)
            if builtin:
                builtin.begin_piece(last=k == len(pieces) - 1)
            elif k == len(pieces) - 1:
                self.strategy.begin_step(n)
            with phase("forward"), self.straggler.stretched():
                loss = F.cross_entropy(self.module(x), y) * (size / n)
                total += loss.item()
            with phase("backward"), self.straggler.stretched():
                (loss if weight == 1 else loss * weight).backward()
                if not builtin:
                    self.strategy.replica.pass_layers()
        return total, n

    def after_update(self) -> None:
        """On a server: what is to be done after each of its updates."""
        self.after_step(self.strategy.descent.version)

    def after_step(self, step: int) -> None:
        """Write a checkpoint if one is due; report the progress, at intervals."""
        if self.options.checkpoint_every and step % self.options.checkpoint_every == 0:
            self.checkpoint(step)
        if self.transport.now() - self.reported > _REPORT_S:
            self.reported = self.transport.now()
            self.report(("step", self.progress()))

    def progress(self) -> int:
        """Return how many steps of the whole run the samples processed so far are worth."""
        done = round(self.plan.n_steps * self.strategy.descent.processed / self.data.n_train)
        return min(done, self.plan.n_steps * self.options.epochs)

    # Checkpoints

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint after `step` steps. Raises RunFailed if it cannot be written."""
        options, device, folder = self.options, self.transport.device, self.checkpoints
        if self.transport.rank not in self.ranks_with_state:
            return
        own, model = self.strategy.state_dict(), None
        with self.recorder.evaluating():
            shown = own["x"] if self.few_have_state else self.strategy.model()
        if self.transport.rank == REPORTER:  # what is to be scored; the same tensor is written once
            model = own["x"] if torch.equal(shown, own["x"]) else shown.clone()
        state = {
            "strategy": own,
            "model": model,
            "position": {
                "step": step,
                "epoch": self.recorder.epoch,
                "loss_sum": self.loss_sum,
                "samples": self.samples,
            },
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }
        target = files.Target(folder, options.checkpoint_keep, options.recorded(), options.roles)
        with self.recorder.evaluating():
            try:
                files.save(self.transport, target, step, state, self.ranks_with_state)
            except WaitTimeout:  # which is an OSError too, and says more of its cause
                raise
            except OSError as error:
                raise RunFailed(f"cannot write the checkpoint {error.filename or folder}: {error.strerror}") from error

    def _load(self, path: str) -> dict[str, Any]:
        """Take over this rank's position in a checkpoint; return its strategy's state. Raises UsageError."""
        state = files.load_rank(latest(path), self.transport.rank)
        try:
            position = state["position"]
            self.done = self.taken = position["step"]
            self.recorder.epoch = position["epoch"]
            self.loss_sum, self.samples = position["loss_sum"], position["samples"]
            self.samples_before = self.samples
            torch.set_rng_state(state["random"])
            if state["random_cuda"] is not None and self.transport.device.type == "cuda":
                torch.cuda.set_rng_state(state["random_cuda"], self.transport.device)
            found: dict[str, Any] = state["strategy"]
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise self._foreign(path, error) from error
        return found

    def _foreign(self, path: str | None, error: Exception) -> UsageError:
        return UsageError(f"--resume {path}: rank-{self.transport.rank}.pt is not of this run ({one_line(error)})")

    # Scores and the end

    def evaluate(self) -> Score | None:
        """Evaluate on the reporter while the others wait; None on them.

        However long it takes, even one batch: no wait times out as long as the reporter's process runs.
        """
        x, transport = self.strategy.model(), self.transport
        if transport.rank != REPORTER:
            while not transport.recv(REPORTER, "evaluated").object:
                pass
            return None
        with parameters_from(self.model, x), transport.while_busy(lambda: self._tell_others(False)):
            score = evaluate(self.model, self.loader.test_batches())
        self._tell_others(True)
        return score

    def _tell_others(self, evaluated: bool) -> None:
        for peer in self.transport.peers:
            try:
                self.transport.isend(evaluated, peer, "evaluated")
            except PeerLost:
                continue  # whether the run can continue without it, others decide

    def result(self) -> RankResult:
        """Return the result of this rank."""
        strategy, transport = self.strategy, self.transport
        state: list[torch.Tensor] = [*trained(self.model)]
        if not isinstance(strategy, Builtin):  # whose ranks share buffers before a step, and not after the last one
            state += [*float_buffers(self.model), *other_tensors(self.model)]
        saved = None
        if self.options.save:
            with self.recorder.evaluating():
                shown = strategy.model()
            if transport.rank == REPORTER:
                with parameters_from(self.model, shown):
                    saved = _state_dict_bytes(self.model)
        if isinstance(strategy, Builtin):
            strategy.close()
        events = self.recorder.close()
        return RankResult(
            transport.rank,
            events if transport.same_machine else events.carry(),
            hashlib.sha256(bytes_of(state).numpy().tobytes()).hexdigest()[:16],
            strategy.state_bytes,
            saved,
            transport.arrivals,
            list(self.recorder.deaths),
            transport.alignment,
            torch.get_num_threads(),
            self.recorder.applied,
        )


def _state_dict_bytes(model: nn.Module) -> bytes:
    # Cloned: the tensors are views of the flat vector, and a view is saved with all that lies behind it.
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
