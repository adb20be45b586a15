"""Sparse averaging: after every step a few elements, others each time, are replaced by their mean over the ranks.

    x_k <- optimizer(x_k, g_k)                      on each rank k, with a state of its own
    S <- a random share p of the elements, the same on all ranks
    x_k[S] <- mean over k of x_k[S]

(SPARTA; Beton, Baioumy and others, 2025, Improving the efficiency of distributed training using sparse parameter
averaging, with p = 0.0005 to 0.005 for far longer runs.)

S depends on the seed and on the number of the step alone, so no indices travel. It is drawn without replacement, and
p = 1 averages everything. Nothing else keeps the replicas together: an element is averaged about every 1 / p steps.
"""

from dataclasses import dataclass

import numpy as np
import torch

from gradwire.compression.sparse import share_of
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Weight
from strategies.collectives import average
from strategies.local_models.drifting import Drifting


@dataclass(kw_only=True)
class Sparta(Drifting):
    """After every step a random share of the parameters, the same on all ranks, is replaced by its mean over ranks."""

    fraction: float = 0.05
    """p: the share of the elements that is averaged after a step, at least one."""

    def cost(self, kind: str | None = None) -> Cost:
        """The chosen elements go round a ring."""
        ring = Traffic("2 (N - 1)", "2 (N - 1) / N max(1, floor(n fraction)) w")
        return Cost(worker=ring, path=ring)

    def memory(self, role: str) -> Footprint:
        """The mean, the chosen elements, and their numbers."""
        return Footprint(other="P + max(1, floor(n fraction)) (w + 8)")

    def check(self, run: RunSize) -> None:
        """Something must be averaged."""
        if not 0 < self.fraction <= 1:
            raise UsageError(f"--fraction {self.fraction}: must be above 0 and at most 1")

    def weight(self, workers: int) -> Weight | str:
        """No exchange changes the mean of all x_k, in which ranks count alike."""
        return Weight(workers, by_samples=False)

    def setup(self) -> None:
        """Allocate the part of x that travels."""
        super().setup()
        n = self.replica.x.numel()
        self.part = self.transport.allocate(share_of(n, self.fraction), self.replica.x.dtype)

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); x_k[S] <- mean over k of x_k[S]."""
        self.updater.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        chosen = self.drawn(self.updater.version)
        torch.index_select(self.replica.x, 0, chosen, out=self.part)
        average(self.part, self.transport)
        self.replica.x.index_copy_(0, chosen, self.part)

    def drawn(self, step: int) -> torch.Tensor:
        """Return the elements that are averaged after this step, ascending."""
        x, k = self.replica.x, self.part.numel()
        if x.is_meta:
            return torch.empty(k, dtype=torch.int64, device="meta")
        random = np.random.default_rng([self.seed % 2**64, step])
        chosen = np.sort(random.choice(x.numel(), k, replace=False, shuffle=False))
        return torch.from_numpy(chosen).to(x.device)
