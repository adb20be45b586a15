"""What all ranks have done in common, each counting in its own place of a shared vector: so no count is lost."""

import torch

from gradwire.core.strategy.updater import Updater


class SharedCounts:
    """The samples and the updates of every rank: `of_ranks` [2, N], in shared memory."""

    def __init__(self, of_ranks: torch.Tensor, rank: int, updater: Updater) -> None:
        self.of_ranks, self._descent = of_ranks, updater
        self._samples, self._updates = of_ranks[:, rank]  # the places of this rank

    def add(self, n_samples: int) -> None:
        """Count an update of this rank."""
        self._samples += n_samples
        self._updates += 1

    def read(self) -> list[int]:
        """Tell `updater` what all ranks together have done in this moment; return the updates of each."""
        samples, updates = self.of_ranks.tolist()
        self._descent.samples = self._descent.processed = sum(samples)
        self._descent.version = sum(updates)
        return updates
