"""One process, no communication: mini-batch SGD, the reference that the others are compared with."""

from strategies.base import Strategy


class Single(Strategy):
    """The update of one process on the whole global batch."""

    max_ranks: int | None = 1

    def step(self, n_samples: int) -> None:
        """x <- optimizer(x, g)."""
        self.replica.collect(n_samples)
        self.update(n_samples * self.transport.world_size)
        self.replica.zero_grad()
