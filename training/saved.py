"""What one rank writes into checkpoints, and continues from: its strategy's state, and where it was in the run."""

from dataclasses import dataclass
from typing import Any

import torch

from checkpoints import files
from checkpoints.folder import latest
from records.errors import RunFailed
from strategies import Strategy
from strategies.common.kept import random_state, set_random_state
from training.evaluation import REPORTER
from training.precision import Precision
from transports.base import Transport
from transports.messages import WaitTimeout


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


class Saved:
    """The checkpoints of one rank, to write and, if it is resumed, to continue from."""

    def __init__(
        self, transport: Transport, strategy: Strategy, target: files.Target, resume: str | None, precision: Precision
    ) -> None:
        self._transport, self._strategy, self._target, self._resume = transport, strategy, target, resume
        self._precision = precision
        serving = [rank for rank, role in enumerate(target.roles) if role == "server"]
        # Ranks that do not keep step never come to the same checkpoint: then few have all of it.
        self._few_have_state = strategy.traits.workers_may_die or strategy.traits.asynchronous
        self._ranks = (serving or [REPORTER]) if self._few_have_state else list(range(len(target.roles)))
        self.position = Position()

    def write(self, step: int) -> None:
        """Write a checkpoint after `step` steps. Raises RunFailed if it cannot be written."""
        transport = self._transport
        if transport.rank not in self._ranks:
            return
        own, model = self._strategy.state_dict(), None
        with transport.recorder.evaluating():
            shown = own["x"] if self._few_have_state else self._strategy.model()
        if transport.rank == REPORTER:  # what is to be scored; the same tensor is written once
            model = own["x"] if torch.equal(shown, own["x"]) else shown.clone()
        state = {
            "strategy": own,
            "model": model,
            "position": {
                "step": step,
                "epoch": transport.recorder.epoch,
                "loss_sum": self.position.loss_sum,
                "n": self.position.n,
                "samples": self.position.samples,
            },
            **random_state(transport.device),
            "precision": self._precision.scaler.state_dict(),
        }
        with transport.recorder.evaluating():
            try:
                files.save(transport, self._target, step, state, self._ranks)
            except WaitTimeout:  # which is an OSError too, and says more of its cause
                raise
            except OSError as error:
                where = error.filename or self._target.folder
                raise RunFailed(f"cannot write the checkpoint {where}: {error.strerror}") from error

    def load(self) -> dict[str, Any] | None:
        """Take over this rank's position in the checkpoint to resume from; return its strategy's state.

        None if this rank has none. Raises UsageError if its file is damaged.
        """
        path, transport = self._resume, self._transport
        if not path or transport.rejoined or transport.rank not in self._ranks:
            return None
        state = files.load_rank(latest(path), transport.rank)
        position, samples = state["position"], state["position"]["samples"]
        step, loss_sum, n = position["step"], position["loss_sum"], position.get("n", samples)
        self.position = Position(step, step, loss_sum, n, samples, samples)
        transport.recorder.epoch = position["epoch"]
        set_random_state(state, transport.device)
        self._precision.scaler.load_state_dict(state.get("precision", {}))  # there was none before --amp
        found: dict[str, Any] = state["strategy"]
        return found
