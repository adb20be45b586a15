"""Downpour SGD: workers take steps of their own, and now and then send how far they have come.

Each worker runs the optimizer on its own x_k and adds up its movement d_k (-eta g for plain SGD). Every `n_push` steps
it pushes d_k, and the server adds: x <- x + d_k. Every `n_fetch` steps it fetches the server's x; a fetch does not
clear what is not pushed yet. (Dean et al., 2012, Large scale distributed deep networks, algorithm 7.1.)

Two things differ from the paper. There a worker starts its fetch and its push and computes on; here it waits until the
server has taken the push, and for the parameters that it fetches. There the server may run Adagrad; here it only adds,
so the optimizer is the workers', each with its own state.

An epoch ends when the server has added as many samples as the training set has: then it answers no fetch until every
worker fetches; all push what they have left, and get the same x.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from strategies.common.base import RunSize, between
from strategies.common.traffic import Traffic
from strategies.common.workers import SERVER
from strategies.param_server import ParamServer
from transports.base import Message


@dataclass(kw_only=True)
class Downpour(ParamServer):
    """Workers take optimizer steps of their own; now and then they push their movement and fetch the parameters."""

    n_push: int = 1
    """Steps of a worker between two pushes of its movement."""
    n_fetch: int = 1
    """Steps of a worker between two fetches of the server's parameters."""

    asynchronous = True
    workers_may_die = True
    defaults = {"momentum": 0.0}  # late movements act like momentum
    traffic = {"worker": Traffic("1 / n_push + 1 / n_fetch", "P / n_push"),
               "server": Traffic("(N - 1) / n_fetch", "(N - 1) P / n_fetch")}  # fmt: skip

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

    # Worker

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
        self.transport.isend(self.movement, SERVER, tag, n=self.n_moved).wait()
        self.movement.zero_()
        self.n_moved = 0

    def fetch(self) -> None:
        """x_k <- the server's x. The number beside it is that of the samples added so far, of all workers."""
        self.transport.isend(None, SERVER, "fetch", n=self.steps)
        parameters = self.transport.recv(SERVER, "parameters")
        self.descent.samples = self.descent.processed = parameters.n
        self.over = parameters.n >= self.until
        parameters.copy_to(self.replica.x)

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """This worker's own steps, one after the other, until the server ends the epoch."""
        self.over = False
        while not self.over:
            yield self.steps

    # Server

    def serve(self) -> None:
        """Add what is pushed and send x to who fetches, until the epoch has its samples and all workers fetch."""
        for message in self.workers.messages("fetch", "push", until=self.until):
            if message.tag == "push":
                self.add(message)
            else:
                self.workers.steps[message.src] = message.n
            if self.descent.samples < self.until:
                self.reply()
        self.reply()

    def reply(self) -> None:
        """Send x to the workers that have asked for it."""
        for k in self.workers.take_waiting():
            self.workers.send_copy(self.replica.x, k, n=self.descent.samples)

    def add(self, push: Message) -> None:
        """x <- x + d_k."""
        if push.n:
            with self.transport.recorder.phase("update"):
                self.replica.x.add_(push.vector)
            self.workers.record_applied(push)
            self.descent.count(push.n)
        push.release()

    # Both

    def finish(self) -> None:
        """Push what is left of d_k, and take x; then average the buffers."""
        self.say_goodbye()
        if self.is_server:
            for push in self.workers.gather("rest"):
                self.add(push)
                self.workers.note_update()
            self.reply()
        else:
            self.push("rest")
            self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)
        self.end_epoch()
