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

from records.events import clock
from strategies import Strategy
from training import checkpoints
from training.failures import RunFailed
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
    strategy.samples_of_epoch = data.n_train
    first_worker = roles.index("worker")
    worker = _Worker(
        transport, strategy, module, data, plan, options, transport.rank - first_worker,
        report if transport.rank == first_worker else lambda value: None,
        Straggler(options.slowdowns.get(transport.rank, 1.0), options.jitter, options.seed + transport.rank,
                  transport.device),
    )  # fmt: skip
    done = 0
    if options.resume:
        state = checkpoints.load_rank(checkpoints.latest(options.resume), transport.rank)
        done = worker.load_state_dict(state)
    strategy.steps = done
    if options.checkpoint_every:
        strategy.on_served = worker.checkpoint
    # A checkpoint after the last step of an epoch was written before its evaluation, so that epoch is ended again.
    for epoch in range(1 + max(0, done - 1) // plan.n_steps, options.epochs + 1):
        recorder.epoch = epoch
        t0 = clock()
        if roles[transport.rank] == "server":
            strategy.serve()
        else:
            worker.train_epoch(epoch, done - (epoch - 1) * plan.n_steps)
        strategy.finish()
        recorder.step = epoch * plan.n_steps
        recorder.mark("epoch_s", clock() - t0)
        with recorder.paused():
            score = _evaluate_on_owner(transport, model, data, options)
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
            self.checkpoint(recorder.step + 1)
            if clock() - self.reported > _REPORT_S or step == plan.n_steps - 1:
                self.reported = clock()
                self.report(("step", recorder.step + 1))
        recorder.mark("samples", self.samples)
        recorder.mark("train_loss", self.loss_sum / self.samples)

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint after `step` steps if one is due. Raises RunFailed if it cannot be written."""
        if not self.options.checkpoint_every or step % self.options.checkpoint_every:
            return
        device = self.transport.device
        state = {
            "strategy": self.strategy.state_dict(),
            "position": {"step": step, "loss_sum": self.loss_sum, "samples": self.samples},
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }
        with self.transport.recorder.paused():
            try:
                checkpoints.save(self.transport, self.options, step, state)
            except OSError as error:
                where = error.filename or self.options.checkpoint_folder
                raise RunFailed(f"cannot write the checkpoint {where}: {error.strerror}") from error

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Go on from what `checkpoint` wrote; return how many steps are done."""
        self.strategy.load_state_dict(state["strategy"])
        position = state["position"]
        self.loss_sum, self.samples = position["loss_sum"], position["samples"]
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and self.transport.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self.transport.device)
        return int(position["step"])

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
    transport: Transport, model: nn.Module, data: Data, options: Options
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
            for peer in transport.peers:
                transport.isend(False, peer, "evaluated")

    score = evaluate(model, data, transport.device, options.torch_dtype, still_busy)
    for peer in transport.peers:
        transport.isend(True, peer, "evaluated")
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
