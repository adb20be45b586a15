"""Scalars of one rank for TensorBoard, while the run goes on: `--tensorboard DIR`, by the optional package."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from gradwire.core.records.errors import RunFailed, import_extra
from gradwire.core.records.events import EVALUATE
from gradwire.core.records.observer import Observer
from gradwire.core.records.recorder import Recorder
from gradwire.core.training.rank import Rank
from gradwire.core.training.watchers import Watcher

_EVERY_S = 0.5


def check_tensorboard(folder: str) -> Any:
    """Return the module that writes; check that the package is here. Raises UsageError."""
    return import_extra("torch.utils.tensorboard", f"--tensorboard {folder}", "tensorboard", "tensorboard")


class Scalars(Observer):
    """Writes to a folder each mark of an epoch, by its name, and the following scalars at intervals.

    `lr`; `loss`, the mean over the interval's steps; `bytes_sent` since the run began, without those of evaluation;
    `waiting`, the share of the interval; `staleness`, the mean over the gradients applied in it. Without events, only
    the first two.
    """

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self._recorder, self._folder = recorder, folder
        self._writer = check_tensorboard(str(folder)).SummaryWriter(str(folder))
        self._bytes, self._waited = 0, 0.0
        self._values: dict[str, list[float]] = defaultdict(list)  # by name; their mean is written
        self._t0 = recorder.clock()
        recorder.observers.append(self)

    def span(self, phase: str, seconds: float, op: str, nbytes: int, version_read: int, version_applied: int) -> None:
        """Add up bytes and waits, and note the version that an update was applied to."""
        if op == "send" and phase != EVALUATE:
            self._bytes += nbytes
        elif phase == "wait":
            self._waited += seconds
        elif phase == "update" and version_read >= 0:
            self._values["staleness"].append(version_applied - version_read)

    def mark(self, name: str, value: float) -> None:
        """Write a value of an epoch."""
        self._write(self._recorder.step, {name: value})

    def take_loss(self, loss: float) -> None:
        """Note the loss of a step."""
        self._values["loss"].append(loss)

    def tick(self, step: int, lr: float, now: bool = False) -> None:
        """Write the scalars of the interval before `step`, if it is over, or `now`. Raises RunFailed."""
        seconds = self._recorder.clock() - self._t0
        if now or seconds >= _EVERY_S:
            found = {name: sum(values) / len(values) for name, values in self._values.items()}
            if self._recorder.enabled:
                found |= {"bytes_sent": self._bytes, "waiting": self._waited / seconds if seconds else 0.0}
            self._write(step, found | {"lr": lr})
            self._waited, self._t0 = 0.0, self._recorder.clock()
            self._values.clear()

    def _write(self, step: int, found: dict[str, float]) -> None:
        try:
            for name, value in found.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
        except OSError as error:
            raise RunFailed(f"cannot write --tensorboard {self._folder}: {error.strerror}") from error

    def close(self) -> None:
        """End the thread that writes."""
        self._writer.close()


class ScalarWatcher(Watcher):
    """Writes the scalars of a rank into `folder`/rank-N."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin_run(self, rank: Rank) -> None:
        """Open the file."""
        self._scalars = Scalars(rank.recorder, self._folder / f"rank-{rank.transport.rank}")

    def gradient_ready(self, rank: Rank, i: int, loss: float, n: int) -> None:
        """Take note of the loss."""
        self._scalars.take_loss(loss)

    def end_step(self, rank: Rank, step: int) -> None:
        """Write, at intervals."""
        self._scalars.tick(step, rank.strategy.updater.rate)

    def end_epoch(self, rank: Rank, score: tuple[str, float] | None) -> None:
        """Write what there is."""
        self._scalars.tick(rank.recorder.step, rank.strategy.updater.rate, now=True)

    def end_run(self, rank: Rank) -> None:
        """End the thread that writes."""
        self._scalars.close()
