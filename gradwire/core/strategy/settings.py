"""The settings that a run passes to its strategy, beside the model, the transport and the optimizer."""

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.core.strategy.updater import Schedule


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run that hold for every strategy; `clip_norm`, `schedule`: see `Updater`.

    `seed`: for the random draws, the same on all ranks. `network`: of --network, if known. `after_update` is
    called on a server after each of its updates, when the workers have their replies.
    """

    clip_norm: float = 0.0
    schedule: Schedule | None = None
    seed: int = 0
    network: object | None = None
    after_update: Callable[[], None] = lambda: None


DEFAULT = RunSettings()
