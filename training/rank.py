"""What one rank does in a run, whatever its strategy: train or serve, epoch by epoch, and measure."""

import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from records.errors import RunFailed, UsageError, one_line
from records.events import clock
from strategies import Strategy
from strategies.param_server import SERVER
from training import checkpoints, replay
from training.options import Options
from training.straggler import Straggler
from transports.base import Transport
from workloads import models
from workloads.batches import BatchPlan
from workloads.datasets import Data

OWNER = 0  # the rank whose replica is the model that the algorithm calls its own: evaluated, saved
_REPORT_S = 0.1
_EVALUATION_BATCH = 512


@dataclass
class RankResult:
    """What a rank brings home: its events, a hash of its parameters, and the owner the model if it is to be saved."""

    rank: int
    events: pd.DataFrame
    parameter_hash: str
    saved_model: bytes | None
    arrivals: list[int]  # of a server: whose messages came, in their order, where that decides the result
    deaths: list[dict[str, Any]]  # of a server: of its workers, where it goes on without them


def build_model(options: Options, data: Data) -> nn.Module:
    """Return the model with the initial weights of `options.seed`. Raises UsageError."""
    torch.manual_seed(options.seed)
    return models.build(options.model, data.input_shape, data.n_classes).to(options.torch_dtype)


def train_rank(transport: Transport, report: Callable[[Any], None], options: Options, data: Data) -> RankResult:
    """Be one rank of the run; `report` is given ("step", steps done) and ("accuracy", of the epoch).

    Raises RunFailed if the loss is not finite; PeerLost, WaitTimeout.
    """
    recorder, roles = transport.recorder, options.roles
    model = build_model(options, data).to(transport.device)
    torch.manual_seed(options.seed + 1 + transport.rank)  # dropout differs between ranks
    strategy = options.make_strategy(data.n_train)
    module = strategy.wrap(model, transport, options.n_gpus or 1)
    plan = options.plan(data.n_train)
    first_worker = roles.index("worker")
    reporter = SERVER if strategy.workers_may_die else first_worker
    worker = _Worker(
        transport, strategy, module, data, plan, options, transport.rank - first_worker,
        report if transport.rank == reporter else lambda value: None,
        Straggler(options.slowdowns.get(transport.rank, 1.0), options.jitter, options.seed + transport.rank,
                  transport.device),
    )  # fmt: skip
    is_server = roles[transport.rank] == "server"
    if is_server:
        strategy.on_served = worker.served
    if is_server and options.replay:
        strategy.replay = iter(replay.load(options.replay).arrivals)
    done = worker.resume() if options.resume and not transport.rejoined else 0
    # A checkpoint after the last step of an epoch was written before its evaluation, so that epoch is ended again.
    first = max(1, recorder.epoch)
    for epoch in range(first, options.epochs + 1):
        recorder.epoch = epoch
        strategy.goal = epoch * data.n_train
        t0, samples = clock(), strategy.samples
        if is_server:
            strategy.serve()
        else:
            resumed_amid = epoch == first and not strategy.own_pace
            worker.train_epoch(epoch, done - (epoch - 1) * plan.n_steps if resumed_amid else 0)
        strategy.finish()
        recorder.step = strategy.steps if strategy.own_pace else epoch * plan.n_steps
        recorder.mark("epoch_s", clock() - t0)
        if is_server and strategy.workers_may_die:
            recorder.mark("samples", strategy.samples - samples)
        with recorder.paused():
            score = _evaluate_on_owner(transport, strategy, model, data, options)
        if score is not None:
            if not math.isfinite(score[0]):
                raise RunFailed(
                    f"the loss on the held-out set is {score[0]} after epoch {epoch}, step {plan.n_steps} of "
                    f"{plan.n_steps}; take a smaller --lr, or bound the gradient with --clip_norm"
                )
            recorder.mark("test_loss", score[0])
            recorder.mark("test_accuracy", score[1])
            report(("accuracy", score[1]))
    result = RankResult(
        transport.rank,
        recorder.frame(),
        hashlib.sha256(strategy.parameters().cpu().numpy().tobytes()).hexdigest()[:16],
        _state_dict_bytes(model) if options.save and transport.rank == OWNER else None,
        list(strategy.arrivals),
        list(strategy.deaths),
    )
    strategy.close()
    return result


@dataclass
class _Worker:
    """The part of the loop that computes."""

    transport: Transport
    strategy: Strategy
    module: nn.Module
    data: Data
    plan: BatchPlan
    options: Options
    number: int
    report: Callable[[Any], None]
    straggler: Straggler
    reported: float = 0.0
    loss_sum: float = 0.0  # of this epoch's samples
    samples: int = 0

    def train_epoch(self, epoch: int, done: int) -> None:
        """Take this worker's part of every batch of the epoch, without the first `done` if that is positive."""
        recorder, plan = self.transport.recorder, self.plan
        if done <= 0:
            self.loss_sum, self.samples = 0.0, 0
        self.module.train()
        start = (epoch - 1) * plan.n_steps
        for i in self.strategy.steps_of_epoch(start + max(0, done), start + plan.n_steps):
            recorder.step = i
            at, step = 1 + i // plan.n_steps, i % plan.n_steps  # an asynchronous worker has its own pace
            batch = plan.batch(at, step)
            part = batch if self.transport.world_size == 1 else plan.part(at, step, self.number)
            loss = self.gradient(part, self.strategy.loss_weight(len(part), len(batch)))
            if not math.isfinite(loss):
                raise RunFailed(
                    f"the loss became {loss} in epoch {epoch}, step {step + 1} of {plan.n_steps}; "
                    "take a smaller --lr, or bound the gradient with --clip_norm"
                )
            self.strategy.step(len(part))
            self.loss_sum += loss * len(part)
            self.samples += len(part)
            if not self.strategy.workers_may_die:
                self.checkpoint(recorder.step + 1)
            if clock() - self.reported > _REPORT_S or step == plan.n_steps - 1:
                self.reported = clock()
                self.report(("step", recorder.step + 1))
        recorder.mark("samples", self.samples)
        if self.samples:
            recorder.mark("train_loss", self.loss_sum / self.samples)

    def served(self, step: int) -> None:
        """On a server: what is to be done after each of its steps."""
        self.checkpoint(step)
        if self.strategy.workers_may_die and clock() - self.reported > _REPORT_S:
            self.reported = clock()
            n_steps = self.plan.n_steps * self.strategy.samples / self.data.n_train
            self.report(("step", min(round(n_steps), self.plan.n_steps * self.options.epochs)))

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint after `step` steps if one is due. Raises RunFailed if it cannot be written."""
        if not self.options.checkpoint_every or step % self.options.checkpoint_every:
            return
        device = self.transport.device
        state = {
            "strategy": self.strategy.state_dict(),
            "position": {
                "step": step,
                "epoch": self.transport.recorder.epoch,
                "loss_sum": self.loss_sum,
                "samples": self.samples,
            },
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }
        with self.transport.recorder.paused():
            try:
                everybody = range(self.transport.world_size)
                ranks = [SERVER] if self.strategy.workers_may_die else everybody
                checkpoints.save(self.transport, self.options, step, state, ranks=ranks)
            except OSError as error:
                where = error.filename or self.options.checkpoint_folder
                raise RunFailed(f"cannot write the checkpoint {where}: {error.strerror}") from error

    def resume(self) -> int:
        """Go on from the checkpoint that the options name; return how many steps are done. All ranks call it."""
        strategy = self.strategy
        if not strategy.workers_may_die:
            return self._load()
        if self.transport.rank == SERVER:
            self._load()
        strategy.share()
        return strategy.steps

    def _load(self) -> int:
        """Take in what `checkpoint` wrote on this rank; return how many steps are done. Raises UsageError."""
        path, rank = checkpoints.latest(self.options.resume or ""), self.transport.rank
        state = checkpoints.load_rank(path, rank)
        try:
            self.strategy.load_state_dict(state["strategy"])
            position = state["position"]
            self.strategy.steps = done = int(position["step"])
            self.transport.recorder.epoch = int(position["epoch"])
            self.loss_sum, self.samples = position["loss_sum"], position["samples"]
            torch.set_rng_state(state["random"])
            if state["random_cuda"] is not None and self.transport.device.type == "cuda":
                torch.cuda.set_rng_state(state["random_cuda"], self.transport.device)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UsageError(f"--resume {path}: rank-{rank}.pt is not of this run ({one_line(error)})") from error
        return done

    def gradient(self, part: torch.Tensor, weight: float) -> float:
        """Add the gradient of the mean loss over the samples of `part`, times `weight`; return the loss itself."""
        phase, device = self.transport.recorder.phase, self.transport.device
        total = 0.0
        pieces = part.tensor_split(min(self.options.accumulate, len(part)))
        for piece in pieces:
            with phase("data"):
                x, y = self.data.fetch(piece, "train", device, self.options.torch_dtype)
            with self.strategy.piece(last=piece is pieces[-1]):
                with phase("forward"), self.straggler.stretched():
                    loss = F.cross_entropy(self.module(x), y) * (len(piece) / len(part))
                    total += loss.item()
                with phase("backward"), self.straggler.stretched():
                    (loss if weight == 1 else loss * weight).backward()
        return total


def _evaluate_on_owner(
    transport: Transport, strategy: Strategy, model: nn.Module, data: Data, options: Options
) -> tuple[float, float] | None:
    """Evaluate on the owner while the others wait; None on them. However long it takes, no wait times out."""
    if transport.rank != OWNER:
        while not transport.recv(OWNER, "evaluated").object:
            pass
        return None
    told = clock()

    def still_busy() -> None:
        nonlocal told
        if clock() - told > transport.timeout / 4:
            told = clock()
            strategy.tell(False, "evaluated")

    score = evaluate(model, data, transport.device, options.torch_dtype, still_busy)
    strategy.tell(True, "evaluated")
    return score


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, device: torch.device, dtype: torch.dtype, after_batch: Callable[[], None]
) -> tuple[float, float]:
    """Return the mean loss and the accuracy (0 to 1) on the held-out set."""
    model.eval()
    loss, correct = 0.0, 0
    for indices in torch.arange(data.n_test).split(_EVALUATION_BATCH):
        x, y = data.fetch(indices, "test", device, dtype)
        output = model(x)
        loss += F.cross_entropy(output, y, reduction="sum").item()
        correct += int((output.argmax(1) == y).sum())
        after_batch()
    return loss / data.n_test, correct / data.n_test


def _state_dict_bytes(model: nn.Module) -> bytes:
    # Cloned: the tensors are views of the flat vector, and a view is saved with all that lies behind it.
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
