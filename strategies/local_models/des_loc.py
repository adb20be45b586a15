"""DES-LOC: every rank trains by Adam; x and the two moments are averaged over the ranks, each with its own period.

    x_k, u_k, v_k <- Adam(x_k, u_k, v_k, g_k)       on each rank k, in each step t
    if t mod K_x = 0:  x_k <- mean of x_k           the parameters
    if t mod K_u = 0:  u_k <- mean of u_k           the first moment: the mean of gradients
    if t mod K_v = 0:  v_k <- mean of v_k           the second: the mean of their squares

(Iacob et al., 2025, arXiv 2505.22549, with K_u = 3 K_x and K_v = 6 K_x.) A moment changes slowly, so it needs to be
averaged seldom. A mean is sum of n_k y_k / sum of n_k, n_k being the samples of rank k since the last mean of the same;
in the paper all weigh the same. Three equal periods are Local Adam (Cheng, Glasgow, 2024, arXiv 2409.13155).

All three periods 1 are not Adam with the mean gradient. After each step all ranks have the same

    u = b1 u + (1 - b1) mean of g_k                 Adam's with the mean gradient
    v = b2 v + (1 - b2) mean of g_k^2               Adam's has (mean of g_k)^2, less by the variance of the g_k
    x = x - eta mean of u_k / (sqrt(v_k) + eps)     u_k, v_k: of rank k before the means, with its own g_k

which are Adam's if all g_k are the same.

Nothing is on its way between two steps. Periods go on from one epoch to the next. The run evaluates and saves the
mean of the x_k, at any time; a checkpoint has the x_k, u_k and v_k of each rank.
"""

import math
from dataclasses import dataclass

import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import option
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic, Traits
from gradwire.core.strategy.updater import optimizer_of
from strategies.collectives import ring_all_reduce
from strategies.local_models.drifting import Drifting

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's Adam calls u and v


@dataclass(kw_only=True)
class DESLOC(Drifting):
    """Every rank trains by Adam; parameters and both moments are averaged, each with its own period (DES-LOC)."""

    local_steps: int = option(4, least=1)
    """K_x: steps of each rank between two averagings of the parameters."""
    first_period: int | None = option(None, least=1)
    """K_u: steps between two averagings of Adam's first moment. Default: 3 local_steps."""
    second_period: int | None = option(None, least=1)
    """K_v: steps between two averagings of Adam's second moment. Default: 6 local_steps."""

    traits = Traits(agree=False, defaults={"optimizer": "adam", "lr": 0.01})

    def cost(self, kind: str | None = None) -> Cost:
        """A ring for each of the three in its period: by default 6 + 2 + 1 of them in 6 K_x steps."""
        K_u = "first_period" if self.first_period else "(3 local_steps)"
        K_v = "second_period" if self.second_period else "(6 local_steps)"
        rings = f"(1 / local_steps + 1 / {K_u} + 1 / {K_v})"
        if not (self.first_period or self.second_period):
            rings = "9 / (6 local_steps)"
        ring = Traffic(f"2 (N - 1) {rings}", f"2 (N - 1) P / N {rings}")
        return Cost(worker=ring, path=ring)

    def check(self, run: RunSize) -> None:
        """Adam has the moments."""
        if run.optimizer:
            why = f"{self.name} averages the two moments of adam"
            made = optimizer_of(torch.optim.Adam, run.optimizer, why, "take adam or adamw")
            if made.defaults["amsgrad"]:
                raise UsageError(f"--optimizer_options amsgrad=True: {why}, and this makes a third; leave it out")

    @property
    def period(self) -> int:
        """An averaging of each of the three."""
        return math.lcm(*self.periods)

    @property
    def periods(self) -> tuple[int, int, int]:
        """K_x, K_u and K_v."""
        H = self.local_steps
        return H, self.first_period or 3 * H, self.second_period or 6 * H

    def setup(self) -> None:
        """Begin the periods of x, u and v."""
        super().setup()
        self.n_taken = torch.zeros(3, dtype=torch.int64, device="cpu")  # samples of each period
        self.keep("n_taken", self.n_taken, counted=False)

    def step(self, n_samples: int) -> None:
        """x_k, u_k, v_k <- Adam(x_k, u_k, v_k, g_k); average those whose period ends."""
        self.updater.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        self.n_taken += n_samples
        for i, period in enumerate(self.periods):
            if self.updater.version % period == 0:
                self.end_period(i)

    def end_period(self, i: int) -> None:
        """Replace x_k (0), u_k (1) or v_k (2) by sum of n_k y_k / sum of n_k, y being it."""
        state, mean, n = self.updater.optimizer.state, self.mean, int(self.n_taken[i])
        parts = [state[p][MOMENTS[i - 1]] if i else p.data for p in self.updater.parameters]
        pairs = list(zip(parts, mean.split([part.numel() for part in parts]), strict=True))
        for part, place in pairs:
            place.copy_(part.view(-1))
        mean.mul_(n).div_(ring_all_reduce(mean, self.transport, n))
        for part, place in pairs:
            part.copy_(place.view(part.shape))
        self.n_taken[i] = 0
