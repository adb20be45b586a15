"""Elastic averaging SGD: workers train models of their own, each drawn to a centre on the server, and it to them.

Each worker runs the optimizer on its own x_k. Every `tau` steps it fetches the server's centre x~ and computes the
elastic difference d = `alpha` (x_k - x~): x_k <- x_k - d, and the server, to which d is pushed, adds: x~ <- x~ + d.
What is evaluated is x~; the workers' x_k stay apart. (Zhang, Choromanska, LeCun, 2015, arXiv 1412.6651, algorithm 1;
with --momentum and --optimizer_options nesterov=True it is EAMSGD, algorithm 2.)

Two things differ from the paper. There a worker computes its gradient before an exchange and applies it after it; here
an exchange is between two whole steps, and the first is after `tau` of them. There the option is beta = W alpha, 0.9
for W workers; here it is alpha, with the same default. Between a fetch and its push others may push: with
W alpha > 1, workers that exchange at the same time carry x~ beyond their mean, and much more than 1 diverges.

How the server adds and answers, and how an epoch ends: `push_fetch.py`.
"""

from dataclasses import dataclass, replace

import torch

from gradwire.core.records.errors import UsageError, between
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic, Weight
from gradwire.core.transports.base import Message
from strategies.asynchronous_server.push_fetch import PushFetch


@dataclass(kw_only=True)
class ElasticAveraging(PushFetch):
    """Workers train apart, and every tau steps each and the server's centre move towards each other by alpha.

    The staleness of a push: the versions of x~ that others have made between the fetch and the adding of the push,
    which belong to one exchange. One worker alone has 0.
    """

    alpha: float | None = None
    """The part of the way to the other that a worker and the centre move in an exchange. Default: 0.9 / workers."""
    tau: int = 4
    """Steps of a worker between two exchanges with the centre."""

    traits = replace(PushFetch.traits, agree=False)

    def cost(self, kind: str | None = None) -> Cost:
        """Every tau steps a request, x~ and d."""
        return Cost(worker=Traffic("2 / tau", "P / tau"), server=Traffic("(N - 1) / tau", "(N - 1) P / tau"))

    def check(self, run: RunSize) -> None:
        """The centre must lie between the old one and x_k; an epoch must have an exchange."""
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha}: must be above 0 and below 1")
        between(self, "tau", 1, run.steps_per_epoch, "the steps of an epoch")

    @property
    def period(self) -> int:
        """An exchange."""
        return self.tau

    def weight(self, workers: int) -> Weight | str:
        """Not known: each exchange mixes x~ and x_k anew."""
        return "what a gradient adds to the centre depends on all exchanges that follow"

    def setup(self) -> None:
        """Worker: allocate d and x~ as it was fetched last, and count its samples."""
        super().setup()
        self.difference = self.transport.allocate(self.replica.x.numel(), self.replica.x.dtype)
        self.center = torch.empty_like(self.replica.x)
        self.rate = 0.9 / self.count_workers(self.transport.world_size) if self.alpha is None else self.alpha
        self.n_taken = 0

    def join(self, resumed: bool) -> None:
        """All begin at x~."""
        super().join(resumed)
        self.center.copy_(self.replica.x)

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); exchange if it is time to."""
        self.updater.step(self.replica.collect(), n_samples)
        self.n_taken += n_samples
        self.replica.zero_grad()
        self.steps += 1
        if self.steps % self.tau == 0:
            self.fetch()
            if not self.over:
                self.push()

    def take(self, parameters: Message) -> None:
        """Keep x~."""
        parameters.copy_to(self.center)

    def push(self, tag: str = "push") -> None:
        """d <- alpha (x_k - x~); x_k <- x_k - d; the server's x~ <- x~ + d. Without a step since the last: d = 0."""
        torch.sub(self.replica.x, self.center, out=self.difference).mul_(self.rate if self.n_taken else 0.0)
        self.replica.x.sub_(self.difference)
        self.send(self.difference, self.n_taken, tag)
        self.n_taken = 0

    def model(self) -> torch.Tensor:
        """Return x~ [n], on a worker as it was learnt last."""
        return self.replica.x if self.is_server else self.center
