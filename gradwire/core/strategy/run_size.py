"""The size of a run, which the options of a strategy must fit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import check_limits
from gradwire.core.strategy.factories import OptimizerFactory

if TYPE_CHECKING:
    from gradwire.core.strategy.strategy import Strategy  # which imports this module


@dataclass(frozen=True)
class RunSize:
    """The size of a run, and its place, which the options of a strategy must fit."""

    n_ranks: int
    workers: int
    steps_per_epoch: int
    shared_memory: bool = True
    replayed: bool = False  # whether another run's order of messages is repeated
    held_back: bool = False  # whether messages are held back, as on a network
    optimizer: OptimizerFactory | None = None  # which makes the updates; None: it is not checked
    accumulate: int = 1  # into how many pieces a worker cuts its part of a batch, at most
    last_parts: tuple[int, ...] = ()  # the samples of each worker in the last batch of an epoch

    def check_shared_memory(self, name: str) -> None:
        """Check that the ranks of strategy `name`, which read or write one x, share memory and need no messages.

        Raises UsageError.
        """
        if not self.shared_memory:
            raise UsageError(f"--strategy {name}: needs shared memory; run it without torchrun, in real time")
        if self.held_back:
            raise UsageError(
                f"--bandwidth, --latency: the workers of {name} read x in shared memory, where no network can hold it "
                "back; leave them out"
            )
        if self.replayed:
            raise UsageError("--replay: that run has inconsistent reads, which no order of messages decides")


def check_strategy(strategy: "Strategy", run: RunSize) -> None:
    """Check the options of a strategy, by their fields and against the size of the run. Raises UsageError."""
    check_limits(strategy)
    strategy.check(run)
