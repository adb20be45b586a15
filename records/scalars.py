"""Scalars of one rank for TensorBoard, while the run goes on: `--tensorboard DIR`, by the optional package."""

import importlib
from pathlib import Path
from typing import Any

from records.errors import RunFailed, UsageError, one_line
from records.events import EVALUATE
from records.recorder import Recorder

_EVERY_S = 0.5


def check_tensorboard(folder: str) -> None:
    """Check that the package is here. Raises UsageError."""
    try:
        importlib.import_module("torch.utils.tensorboard")
    except Exception as error:
        raise UsageError(
            f"--tensorboard {folder}: needs tensorboard ({one_line(error)}); pip install tensorboard"
        ) from error


class Scalars:
    """Writes what a recorder is told, to `folder`; a context manager, which writes the rest at its end.

    Each mark of an epoch by its name. In between, at intervals: `loss`, the mean over the interval's steps; `lr`;
    `bytes_sent` since the run began, without those of evaluation; `waiting`, the share of the interval; `staleness`,
    the mean over the gradients or pushes that were applied in it. Without events, the first two.
    """

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self._recorder = recorder
        self._folder = folder
        recorder.watcher = self
        self._writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
        self._bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._t0 = self._recorder.clock()
        self._waited = 0.0
        self._losses: list[float] = []
        self._staleness: list[int] = []

    def span(self, phase: str, seconds: float, op: str, nbytes: int, read: int, applied: int) -> None:
        """Count a span: see `Recorder.add`."""
        if op == "send" and phase != EVALUATE:
            self._bytes += nbytes
        elif phase == "wait":
            self._waited += seconds
        elif phase == "update" and read >= 0:
            self._staleness.append(applied - read)

    def mark(self, name: str, value: float) -> None:
        """Write a mark of an epoch."""
        self._write(self._recorder.step, {name: value})

    def loss(self, loss: float) -> None:
        """Take the loss of a step."""
        self._losses.append(loss)

    def tick(self, step: int, lr: float, now: bool = False) -> None:
        """Write what came in the interval before `step`, if it is over, or `now`. Raises RunFailed."""
        seconds = self._recorder.clock() - self._t0
        if seconds < _EVERY_S and not now:
            return
        found = {"lr": lr}
        for name, values in (("loss", self._losses), ("staleness", self._staleness)):
            if values:
                found[name] = sum(values) / len(values)
        if self._recorder.enabled:
            found |= {"bytes_sent": self._bytes, "waiting": self._waited / seconds if seconds else 0.0}
        self._write(step, found)
        self._begin()

    def _write(self, step: int, found: dict[str, float]) -> None:
        try:
            for name, value in found.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
        except OSError as error:
            raise RunFailed(f"cannot write --tensorboard {self._folder}: {error.strerror}") from error

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
