"""One process, no communication: mini-batch SGD, the reference that the others are compared with."""

from dataclasses import dataclass

from gradwire.core.records.errors import between
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import NOTHING, Cost, Traits


@dataclass(kw_only=True)
class Single(Strategy):
    """One process on whole batches: nothing is sent. The reference."""

    workers_like: int = 1
    """Take the batches that this many workers would take together, so that the runs can be compared."""

    traits = Traits(ranks=(1, 1))

    def cost(self, kind: str | None = None) -> Cost:
        """Nothing is sent."""
        return Cost(worker=NOTHING, path=NOTHING)

    def count_workers(self, n_gpus: int) -> int:
        """As many as `workers_like` says: at least one."""
        between(self, "workers_like", 1)
        return self.workers_like

    def step(self, n_samples: int) -> None:
        """x <- optimizer(x, g)."""
        self.updater.step(self.replica.collect(), n_samples)
        self.replica.zero_grad()
