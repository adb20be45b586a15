"""NoLoCo: after every H steps ranks meet in random pairs, and no message goes through all ranks.

    H times:  x_m <- optimizer(x_m, g_m)                on each rank m, with a state of its own
    then:     {m, j}: a random pair
              D_k <- x_k - x0_k                         x0_k: the x_k with which the round began
              d_m <- a d_m + b/2 (D_m + D_j) - c (x0_m - (x0_m + x0_j)/2)
              x0_m <- x0_m + d_m;  x_m <- x0_m

(Kolehmainen and others, 2025, arXiv 2506.10911; signs and defaults are those of the authors' program, where c = b.)

Pairs depend on the seed and the round alone, so all ranks draw the same. If N is odd, one is alone: j = m. The last
term keeps the x0 together; of two ranks, for 0 < c < 2 (1 + a). With N = 2 and a = 0 this is DiLoCo without outer
momentum (with b = 1 FedAvg); with a > 0 the momentum is that of SGD, not Nesterov's.

Rounds go on from one epoch to the next. Nothing is on its way between two steps, so neither in a checkpoint. The mean
of the x_m is evaluated at any time, also in the last, shorter round of a run.
"""

from dataclasses import dataclass

import numpy as np
import torch

from gradwire.core.records.options import option
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Weight
from strategies.local_models.drifting import Drifting


@dataclass(kw_only=True)
class NoLoCo(Drifting):
    """After local_steps optimizer steps of its own, each rank exchanges with one other, drawn at random (NoLoCo)."""

    local_steps: int = option(4, least=1)
    """H: steps of each rank between two exchanges. The authors take 50."""
    outer_lr: float = option(0.7, below=1e30)
    """b: the rate at which x follows the pair's mean movement of a round."""
    outer_momentum: float = option(0.5, below=1.0)
    """a: the share of the last round's movement that is added."""
    consensus_lr: float = option(0.7, below=1e30)
    """c: the rate at which the two of a pair move towards their mean."""

    def cost(self, kind: str | None = None) -> Cost:
        """x and x0 to the other of the pair; both set off together.

        Odd N: up to 0.6 more, for a rank that was alone sends while its next one of the pair still receives.
        """
        worker = Traffic("4 floor(N / 2) / N / local_steps", "4 floor(N / 2) P / N / local_steps")
        return Cost(worker=worker, path=Traffic("min(1, N - 1) / local_steps", "2 min(1, N - 1) P / local_steps"))

    def memory(self, role: str) -> Footprint:
        """The mean, x0 and d."""
        return Footprint(other="3 P")

    @property
    def period(self) -> int:
        """A round."""
        return self.local_steps

    def weight(self, workers: int) -> Weight | str:
        """Not known: d has momentum."""
        return "what is added to x0 goes on in later rounds"

    def setup(self) -> None:
        """d <- 0."""
        super().setup()
        self.x0 = self.transport.allocate(self.replica.x.numel(), self.replica.x.dtype)
        self.d = torch.zeros_like(self.replica.x)
        self.keep("x0", self.x0, counted=False)
        self.keep("d", self.d)

    def join(self, resumed: bool) -> None:
        """All begin at the same x, which the first round began with."""
        super().join(resumed)
        if not resumed:
            self.x0.copy_(self.replica.x)

    def step(self, n_samples: int) -> None:
        """x_m <- optimizer(x_m, g_m); after H steps, exchange."""
        self.updater.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        if self.updater.version % self.local_steps == 0:
            self.end_round(self.partner(self.updater.version // self.local_steps))

    def end_round(self, j: int | None) -> None:
        """Exchange x and x0 with rank j, if any; x0_m <- x0_m + d_m; x_m <- x0_m."""
        x, x0, d, transport = self.replica.x, self.x0, self.d, self.transport
        sent = [] if j is None else [transport.isend(x, j, "x"), transport.isend(x0, j, "x0")]
        received = [] if j is None else [transport.recv(j, "x"), transport.recv(j, "x0")]
        with transport.recorder.phase("update"):
            D = torch.sub(x, x0, out=self.mean)
            d.mul_(self.outer_momentum)
            if received:
                x_j, x0_j = (message.vector for message in received)
                D.add_(x_j - x0_j).div_(2)
                d.sub_(x0 - x0_j, alpha=self.consensus_lr / 2)
            d.add_(D, alpha=self.outer_lr)
        for message in received:
            message.release()
        for work in sent:
            work.wait()
        x.copy_(x0.add_(d))

    def partner(self, number: int) -> int | None:
        """Return the rank that this one exchanges with in the round of this number; None: it is alone."""
        N = self.transport.world_size
        order = np.random.default_rng([self.seed % 2**64, number]).permutation(N).tolist()
        other = order.index(self.transport.rank) ^ 1
        return order[other] if other < N else None
