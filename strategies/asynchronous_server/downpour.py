"""Downpour SGD: workers take steps of their own, and every few steps send how far they have come.

Each worker runs the optimizer on its own x_k and adds up its movement d_k (-eta g for plain SGD). Every `n_push` steps
it pushes d_k, and the server adds: x <- x + d_k. Every `n_fetch` steps it fetches the server's x; a fetch does not
clear what is not pushed yet. (Dean et al., 2012, Large scale distributed deep networks, algorithm 7.1.)

Two things differ from the paper. There a worker starts its fetch and its push and computes on; here it waits until the
server has taken the push, and for the parameters that it fetches. There the server may run Adagrad; here it only adds,
so the optimizer is the workers', each with its own state.

How the server adds and answers, and how an epoch ends: `push_fetch.py`.
"""

from dataclasses import dataclass, replace

import torch

from records.errors import between
from strategies.asynchronous_server.push_fetch import PushFetch
from strategies.common.base import RunSize
from strategies.common.traits import Cost, Traffic
from transports.base import Message


@dataclass(kw_only=True)
class Downpour(PushFetch):
    """Workers take optimizer steps of their own; every few steps they push their movement and fetch the parameters.

    The staleness of a push of up to n_push gradients: the versions that others have made between the worker's last
    fetch and the adding of its push. One worker alone has 0.
    """

    n_push: int = 1
    """Steps of a worker between two pushes of its movement."""
    n_fetch: int = 1
    """Steps of a worker between two fetches of the server's parameters."""

    traits = replace(PushFetch.traits, defaults={"momentum": 0.0})  # late movements act like momentum

    def cost(self, kind: str | None = None) -> Cost:
        """A push every n_push steps; a request, and x, every n_fetch."""
        return Cost(
            worker=Traffic("1 / n_push + 1 / n_fetch", "P / n_push"),
            server=Traffic("(N - 1) / n_fetch", "(N - 1) P / n_fetch"),
        )

    def check(self, run: RunSize) -> None:
        """An epoch must have a push and a fetch."""
        between(self, "n_push", 1, run.steps_per_epoch, "the steps of an epoch")
        between(self, "n_fetch", 1, run.steps_per_epoch, "the steps of an epoch")

    def setup(self) -> None:
        """Worker: allocate d_k, and count its samples."""
        super().setup()
        self.movement = self.transport.allocate(self.replica.x.numel(), self.replica.x.dtype)
        self.before = torch.empty_like(self.replica.x)
        self.n_moved = 0

    def step(self, n_samples: int) -> None:
        """d_k <- d_k + what the optimizer adds to x_k; push and fetch if it is time to."""
        self.before.copy_(self.replica.x)
        self.descent.step(self.replica.collect(), n_samples)
        self.movement.add_(self.replica.x).sub_(self.before)
        self.n_moved += n_samples
        self.replica.zero_grad()
        self.steps += 1
        if self.steps % self.n_push == 0:
            self.push()
        if self.steps % self.n_fetch == 0:
            self.fetch()

    def push(self, tag: str = "push") -> None:
        """The server's x <- x + d_k; d_k <- 0."""
        self.send(self.movement, self.n_moved, tag)
        self.movement.zero_()
        self.n_moved = 0

    def take(self, parameters: Message) -> None:
        """x_k <- the server's x."""
        parameters.copy_to(self.replica.x)
