"""Watchers: callbacks for the moments of one rank's run. Wings use them for all that a run does beside training.

The launching process makes them and pickles them to every rank, before `begin_run` is called there.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from gradwire.core.training.rank import Rank  # which imports this module


class Watcher:
    """Callbacks that are no-ops unless a subclass overrides them. They raise RunFailed on failure."""

    name: ClassVar[str] = ""
    """By which the launching process finds what `end_run` returns."""

    def begin_run(self, rank: "Rank") -> None:
        """Nothing is allocated yet. What enters `rank.stack` is left when the run ends, however it does."""

    def before_start(self, rank: "Rank") -> None:
        """The model is there, and the strategy gets it next."""

    def after_start(self, rank: "Rank") -> None:
        """The strategy has begun: all ranks have the initial parameters."""

    def begin_epoch(self, rank: "Rank") -> None:
        """An epoch begins."""

    def begin_step(self, rank: "Rank", i: int) -> None:
        """Step `i`, counted over all epochs, begins on a worker."""

    def batch_ready(self, rank: "Rank", x: Tensor, y: Tensor) -> None:
        """A worker has the inputs and targets of a micro-batch."""

    def gradient_ready(self, rank: "Rank", i: int, loss: float, n: int) -> None:
        """A worker has the gradient of step `i`, of the mean `loss` over `n`; the strategy gets it next."""

    def end_step(self, rank: "Rank", step: int) -> None:
        """A worker has taken its first `step` steps, or a server has made as many updates."""

    def end_steps(self, rank: "Rank", epoch: int) -> None:
        """This rank has taken its last step of the epoch."""

    def end_epoch(self, rank: "Rank", score: tuple[str, float] | None) -> None:
        """The epoch has ended; on the rank that evaluates, with this score by name."""

    def end_run(self, rank: "Rank") -> Any:
        """Return a result for the launching process. Watchers are called in reverse order."""
