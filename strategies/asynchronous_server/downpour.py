"""Downpour SGD: workers take steps of their own, and every few steps send how far they have come.

Each worker runs the optimizer on its own x_k and adds up its movement d_k (-eta g for plain SGD). Every `n_push` steps
it pushes d_k, and the server adds: x <- x + d_k. Every `n_fetch` steps it fetches the server's x; a fetch does not
clear a movement not pushed yet. (Dean et al., 2012, Large scale distributed deep networks, algorithm 7.1.)

With n_push = n_fetch = H this is asynchronous local SGD (Liu et al., 2024, arXiv 2401.09135): a push is an outer
gradient -d_k, and the server may have momentum: see `delayed_nesterov.py`.

Different from Downpour's paper: there a worker starts its fetch and its push and computes on; here it waits until the
server has taken the push, and for the parameters that it fetches. There the server may run Adagrad; here it may have
momentum. The workers' optimizers have a state each, which stays.

How the server adds and answers, and how an epoch ends: `push_fetch.py`.
"""

import math
from dataclasses import dataclass, replace

import torch

from gradwire.core.records.errors import UsageError, between
from gradwire.core.records.options import option
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Weight
from gradwire.core.transports.base import Message
from strategies.asynchronous_server.delayed_nesterov import DelayedNesterov
from strategies.asynchronous_server.push_fetch import PushFetch


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
    outer_lr: float = option(1.0, below=1e30)
    """eta: the rate at which the server adds what is pushed."""
    outer_momentum: float = option(0.0, below=1.0)
    """beta: the server's Nesterov momentum."""
    momentum_every: int = option(1, least=1)
    """M: pushes to the server of which one applies its momentum, and all 1 / M of what they push."""

    traits = replace(PushFetch.traits, defaults={"momentum": 0.0})  # late movements act like momentum

    def cost(self, kind: str | None = None) -> Cost:
        """A push every n_push steps; a request, and x, every n_fetch."""
        return Cost(
            worker=Traffic("1 / n_push + 1 / n_fetch", "P / n_push"),
            server=Traffic("(N - 1) / n_fetch", "(N - 1) P / n_fetch"),
        )

    def memory(self, role: str) -> Footprint:
        """The server has its momentum too."""
        footprint = super().memory(role)
        return replace(footprint, optimizer_state="P") if role == "server" and self.outer_momentum else footprint

    def check(self, run: RunSize) -> None:
        """An epoch must have a push and a fetch; momentum that is delayed must be there."""
        between(self, "n_push", 1, run.steps_per_epoch, "the steps of an epoch")
        between(self, "n_fetch", 1, run.steps_per_epoch, "the steps of an epoch")
        if self.momentum_every > 1 and not self.outer_momentum:
            raise UsageError(f"--momentum_every {self.momentum_every}: there is no momentum; give --outer_momentum too")

    @property
    def period(self) -> int:
        """A push and a fetch."""
        return math.lcm(self.n_push, self.n_fetch)

    def weight(self, workers: int) -> Weight | str:
        """A movement is a sum of gradients, and the server adds each."""
        return "the server has momentum" if self.outer_momentum else Weight(1, self.outer_lr)

    def setup(self) -> None:
        """Worker: allocate d_k, and count its samples. Server: have momentum."""
        super().setup()
        if self.is_server and self.outer_momentum:
            with self.transport.recorder.holding("optimizer state"):
                self.nesterov = DelayedNesterov(self.replica.x, self.outer_lr, self.outer_momentum, self.momentum_every)
            self.keep("m", self.nesterov.m)
            self.keep("pushes", self.nesterov.pushes, counted=False)
        self.movement = self.transport.allocate(self.replica.x.numel(), self.replica.x.dtype)
        self.before = torch.empty_like(self.replica.x)
        self.n_moved = 0

    def step(self, n_samples: int) -> None:
        """d_k <- d_k + what the optimizer adds to x_k; push and fetch if it is time to."""
        self.before.copy_(self.replica.x)
        self.updater.step(self.replica.collect(), n_samples)
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

    def move(self, movement: torch.Tensor) -> None:
        """x <- x + eta d_k; with momentum see `delayed_nesterov.py`."""
        if self.outer_momentum:
            self.nesterov.add(self.replica.x, movement)
        else:
            self.replica.x.add_(movement, alpha=self.outer_lr)
