"""Streaming DiLoCo: local SGD whose layers are averaged a few at a time, while all ranks train on.

The blocks of the model are cut into P fragments, p = 0 .. P - 1, which take turns: o_p = floor(p H / P). At step t

    x_k <- optimizer(x_k, g_k)                       on each rank k, with a state of its own
    if (t - o_p) mod H = 0:
        send n_k x_k,p, to be summed round a ring    n_k: the samples of rank k since p was sent last
    if (t - o_p - tau) mod H = 0:
        d_p = x0_p - sum of n_k x_k,p / sum of n_k   as they were sent, tau steps ago
        x0_p <- Nesterov(x0_p, d_p)                  x0 is the same on all ranks
        x_k,p <- alpha x_k,p + (1 - alpha) x0_p

(Douillard et al., 2025, arXiv 2501.18512. There each rank sends x0_p - x_k,p, which has the same mean, in 4 bits.) With
P = 1, tau = 0 and alpha = 0 it is DiLoCo: `local_sgd --outer_optimizer nesterov`; `--strided` sends it block by block,
and with more fragments it is the pattern of the paper. `fragments.py` has when in a step a fragment is sent, and waited
for.

With `eager` a rank takes its own difference at once: another algorithm, in `eager.py`.

The run evaluates the mean of the x_k. The end of an epoch and a checkpoint wait for the sums under way and keep them:
each is used in its turn. A sum whose turn comes after the end of the run is not used.
"""

from dataclasses import dataclass

import torch

from gradwire.core.records.errors import UsageError, between
from gradwire.core.records.options import option
from gradwire.core.strategy.factories import outer_sgd
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Weight
from strategies.local_models.eager import EagerUpdates
from strategies.local_models.fragment import Fragment
from strategies.local_models.fragments import Fragmented


@dataclass(kw_only=True)
class StreamingDiLoCo(Fragmented):
    """Local SGD whose layers are averaged a few at a time, while all train on: no step waits for all of x."""

    delay: int | None = None
    """tau: steps after which a sum is used, fewer than local_steps. Default: 1, or 0. Not with --eager."""
    blend: float | None = option(None, below=1.0)
    """alpha: the share of its own x that a rank keeps. Default: 0.5. Not with --eager."""
    outer_lr: float = option(0.7, below=1e30)
    """The learning rate of the outer optimizer, SGD with Nesterov momentum."""
    outer_momentum: float = option(0.9, below=1.0)
    """The momentum of the outer optimizer."""
    eager: bool = False
    """Use a rank's own difference at once, and those of the others a round late."""

    def cost(self, kind: str | None = None) -> Cost:
        """A ring of each fragment every local_steps steps. What of it is hidden has no simple form."""
        rings = "B" if self.strided else "min(fragments, B)"
        return Cost(worker=Traffic(f"2 (N - 1) {rings} / local_steps", "2 (N - 1) P / N / local_steps"))

    def memory(self, role: str) -> Footprint:
        """The mean, x0 and its momentum, and the sums; if eager, the vectors this rank has sent."""
        state = "S" if self.outer_momentum == 0 else "S + P"
        return Footprint(optimizer_state=state, other="4 P" if self.eager else "3 P")

    def check(self, run: RunSize) -> None:
        """A sum is used before the fragment is sent again."""
        for name in ("delay", "blend"):
            if self.eager and getattr(self, name) is not None:
                raise UsageError(f"--{name} {getattr(self, name)}: --eager has none; leave one of the two out")
        if self.delay is not None:
            between(self, "delay", 0, self.local_steps - 1, "one less than --local_steps")

    def weight(self, workers: int) -> Weight | str:
        """Not known: x0 has momentum."""
        return "the outer optimizer has momentum"

    def setup(self) -> None:
        """Make the outer optimizer, which has x0."""
        super().setup()
        self.tau = min(1, self.local_steps - 1) if self.delay is None else self.delay
        self.alpha = 0.5 if self.blend is None else self.blend
        self.outer = outer_sgd([fragment.x0 for fragment in self.cut], self.outer_lr, self.outer_momentum)
        self.keep("outer", self.outer)
        self.eager_updates = self.make_eager_updates() if self.eager else None

    def fill(self, fragment: Fragment, n: int) -> None:
        """At step t with (t - o_p) mod H = 0: the sum <- n_k x_k,p, which is then sent."""
        if self.eager_updates:
            self.eager_updates.fill(fragment, n)
        else:
            torch.mul(fragment.x, n, out=fragment.sum)

    def use(self, fragment: Fragment) -> None:
        """At step t with (t - o_p - tau) mod H = 0: x0_p <- Nesterov(x0_p, d_p); blend x_k,p with it."""
        t = self.updater.version
        if self.eager or fragment in self.backward.updated or not self.has_turn(fragment, t - self.tau):
            return
        if n := self.wait_for(fragment):  # 0: nothing was sent tau steps ago, for the run has just begun
            mean, x0 = fragment.sum.div_(n), fragment.x0.data
            self.take_outer_step(fragment, torch.sub(x0, mean, out=mean))
            torch.lerp(x0, fragment.x, self.alpha, out=fragment.x)  # x_k,p <- alpha x_k,p + (1 - alpha) x0_p

    def take_outer_step(self, fragment: Fragment, d: torch.Tensor) -> None:
        """x0_p <- Nesterov(x0_p, d); the sum is used."""
        with self.transport.recorder.phase("update", len(d) / len(self.x0)):
            fragment.x0.grad = d
            self.outer.step()
            fragment.x0.grad = None
        fragment.n_sum = 0

    def make_eager_updates(self) -> EagerUpdates:
        """Return what a rank does with `eager`, and room for what it has sent."""
        own = torch.zeros_like(self.x0)
        self.keep("own", own)
        return EagerUpdates(own, self.transport.world_size, self.wait_for, self.take_outer_step)
