"""Hogwild++: Hogwild in clusters of ranks, and a token that goes round the ring of clusters carries updates along.

All ranks of cluster i update one x_i in shared memory, without a lock, as in `hogwild.py`; so fewer meet in one vector.
One token goes round the C clusters. The cluster that has it exchanges with the next one, makes tau_0 more updates, and
passes the token on. (Zhang, Hsieh, Akella, Hogwild++, ICDM 2016, section 4.)

The exchange of cluster i: with n = x_{i+1}, and d = x_i - u_i, where u_i is x_i after the last exchange, per element

    |d| > tol:   x_{i+1} <- n + beta d
                 x_i     <- lambda n + (1 - lambda) x_i + (beta + lambda - 1) d;   u_i <- x_i
    otherwise:   x_i     <- lambda n + (1 - lambda) x_i + lambda d;                u_i <- x_i - d: d waits for more

beta is the root in (0, 1) of beta^C + beta - 1, and lambda = 1 - beta^(C-1): so an update that has gone round once has
its full weight when it is back where it was made.

Three things differ from the paper. There a cluster is the cores of one socket; here ranks that follow each other. There
the model is one of the x_i; here it is their mean. There an exchange writes element by element; here whole vectors are
read first, and then added to, so that no update is lost which is made meanwhile.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from gradwire.core.records.options import option
from gradwire.core.strategy.traits import END, Weight
from strategies.living import ROOT
from strategies.lock_free.clusters import cut_ranks, distance_between
from strategies.lock_free.hogwild import Hogwild


def exchange(
    x: torch.Tensor, u: torch.Tensor, next_x: torch.Tensor, beta: float, lam: float, tol: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchange between x_i and x_{i+1}, which others may write meanwhile, and set u_i; all [n], in place.

    Return the changes of x_i and of x_{i+1}.
    """
    x_i, n = x.clone(), next_x.clone()
    d = x_i - u
    passed_on = d * (d.abs() > tol)
    waiting = d - passed_on
    to_next = beta * passed_on
    to_x = lam * (n - x_i) + (beta + lam - 1) * passed_on + lam * waiting
    next_x.add_(to_next)
    x.add_(to_x)
    torch.add(x_i, to_x, out=u).sub_(waiting)
    return to_x, to_next


def coefficients(n_clusters: int) -> tuple[float, float]:
    """Return beta, the root of beta^C + beta - 1 in (0, 1), and lambda = 1 - beta^(C-1), of C clusters."""
    low, high = 0.0, 1.0
    while low < (beta := (low + high) / 2) < high:
        low, high = (beta, high) if beta**n_clusters + beta < 1 else (low, beta)
    return beta, 1 - beta ** (n_clusters - 1)


@dataclass(kw_only=True)
class HogwildPP(Hogwild):
    """Hogwild in clusters with an x each; a token goes round them, and its holder exchanges with the next.

    A dead rank may hold the token, so that a death ends the run. Rank 0 has the state of a checkpoint, as with Hogwild.
    """

    cluster_size: int = option(2, least=1)
    """Ranks that share one x; the last cluster may be smaller."""
    sync_delay: int = option(4, least=1)
    """tau_0: updates of a cluster between getting the token and passing it on. The authors take 64 to 256, of one
    sample each."""
    tolerance: float = option(1e-6, least=0)
    """tol: what an element must have moved to be passed on. The authors take 1e-2 to 1e-6."""

    traits = replace(Hogwild.traits, agree=False, deaths=END)

    @property
    def period(self) -> int:
        """An exchange."""
        return self.sync_delay

    @property
    def fewest_workers(self) -> int:
        """Two clusters."""
        return self.cluster_size + 1

    def weight(self, workers: int) -> Weight | str:
        """Not known: see above."""
        return "an update has its full weight when the token has gone round"

    def setup(self) -> None:
        """Share also the token; find beta and lambda."""
        super().setup()
        self.token = self.share("token", 1, torch.int64)  # the cluster that holds it
        self.keep("token", self.token, counted=False)
        self.pass_at: int | None = None  # with how many updates of the cluster; None: it has not got the token
        self.beta, self.lam = coefficients(len(self.xs))

    def share_x(self) -> torch.Tensor:
        """Share x_i and u_i of every cluster, and the mean of all x; return x_i of this rank's cluster i."""
        x, clusters = self.replica.x, cut_ranks(self.transport.world_size, self.cluster_size)
        self.i = next(i for i, ranks in enumerate(clusters) if self.transport.rank in ranks)
        self.cluster = clusters[self.i]
        self.xs, self.us = (
            [self.share(f"{name} {i}", x.numel(), x.dtype) for i in range(len(clusters))] for name in "xu"
        )
        for i, (x_i, u_i) in enumerate(zip(self.xs, self.us, strict=True)):
            self.keep(f"x {i}", x_i, counted=False)
            self.keep(f"u {i}", u_i, counted=False)
        self.mean = self.share("mean", x.numel(), x.dtype)
        if self.transport.rank == ROOT:
            for vector in (*self.xs, *self.us, self.mean):
                vector.copy_(x)
        return self.xs[self.i]

    # The token

    def step(self, n_samples: int) -> None:
        """x_i <- optimizer(x_i, g_k), in place. The lowest rank of the cluster that holds the token looks after it."""
        super().step(n_samples)
        if len(self.xs) > 1 and self.transport.rank == self.cluster[0] and int(self.token) == self.i:
            self.look_after_token()

    def look_after_token(self) -> None:
        """When the token has come, exchange; tau_0 updates of the cluster later, pass it on."""
        made = int(self.counts.of_ranks[1, self.cluster[0] : self.cluster[-1] + 1].sum())
        if self.pass_at is None:
            self.exchange_with_next()
            self.pass_at = made + self.sync_delay
        elif made >= self.pass_at:
            self.pass_at = None
            self.token.fill_((self.i + 1) % len(self.xs))

    def exchange_with_next(self) -> None:
        """Exchange between x_i and x_{i+1}."""
        i, next_x = self.i, self.xs[(self.i + 1) % len(self.xs)]
        with self.transport.recorder.phase("communicate"):
            added = exchange(self.xs[i], self.us[i], next_x, self.beta, self.lam, self.tolerance)
        if self.lost:
            for increment in added:
                self.lost.note(increment)

    # The model

    def join(self, resumed: bool) -> None:
        """Rank 0: a resumed run begins with the mean of its x."""
        if resumed and self.transport.rank == ROOT:
            self.mean.copy_(self.average_x())
        super().join(resumed)

    def measure(self, all_lived: bool) -> None:
        """On rank 0, while no rank writes: also the mean of all x, and their distance from it."""
        super().measure(all_lived)
        self.mean.copy_(self.average_x())
        self.transport.recorder.meters["replica_distance"] = distance_between(self.xs, self.mean)

    def total_x(self) -> torch.Tensor:
        """Return the sum of all x [n] in float64."""
        return torch.stack(self.xs).sum(0, dtype=torch.float64)

    def average_x(self) -> torch.Tensor:
        """Return the mean of all x [n] in this moment."""
        return self.total_x().div_(len(self.xs)).to(self.mean.dtype)

    def model(self) -> torch.Tensor:
        """Return the mean of all x [n], as it was at the end of the last epoch."""
        return self.mean

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank; its x, which evaluation reads, is the mean."""
        return super().state_dict() | {"x": self.average_x()}
