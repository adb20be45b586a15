"""Elastic averaging SGD: workers train models of their own, each drawn to a centre on the server, and it to them.

Each worker runs the optimizer on its own x_k. Every `tau` steps it fetches the server's centre x~ and computes the
elastic difference d = `alpha` (x_k - x~): x_k <- x_k - d, and the server, to which d is pushed, adds: x~ <- x~ + d.
What is evaluated is x~; the workers' x_k stay apart, also from one epoch to the next, and need not agree. (Zhang,
Choromanska, LeCun, 2015, Deep learning with Elastic Averaging SGD, arXiv 1412.6651, algorithm 1; with --momentum and
--optimizer_options nesterov=True it is EAMSGD, algorithm 2.)

Two things differ from the paper. There a worker computes its gradient before an exchange and applies it after it; here
an exchange is between two whole steps, and the first is after `tau` of them. There beta = W alpha is given, 0.9 for W
workers, which is the default here too; but what is given is alpha. Between a fetch and its push others may push: with
W alpha > 1, workers that exchange at the same time carry x~ beyond their mean, and much more than 1 diverges.

An epoch ends when the server has added the differences of as many samples as the training set has: then it answers no
fetch until every worker fetches; all push their last difference, and learn the same x~.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from records.errors import UsageError
from strategies.common.base import RunSize, between
from strategies.common.traffic import Traffic
from strategies.common.workers import SERVER
from strategies.param_server import ParamServer
from transports.base import Message


@dataclass(kw_only=True)
class ElasticAveraging(ParamServer):
    """Workers train apart, and every tau steps each and the server's centre move towards each other by alpha."""

    alpha: float | None = None
    """The part of the way to the other that a worker and the centre move in an exchange. Default: 0.9 / workers."""
    tau: int = 4
    """Steps of a worker between two exchanges with the centre."""

    asynchronous = True
    replicas_agree = False
    workers_may_die = True
    traffic = {"worker": Traffic("2 / tau", "P / tau"), "server": Traffic("(N - 1) / tau", "(N - 1) P / tau")}

    def check(self, run: RunSize) -> None:
        """The centre must lie between the old one and x_k; an epoch must have an exchange."""
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha}: must be above 0 and below 1")
        between(self, "tau", 1, run.steps_per_epoch, "the steps of an epoch")

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

    # Worker

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); exchange if it is time to."""
        self.descent.step(self.replica.collect(), n_samples)
        self.n_taken += n_samples
        self.replica.zero_grad()
        self.steps += 1
        if self.steps % self.tau == 0:
            self.fetch()
            if not self.over:
                self.push()

    def fetch(self) -> None:
        """Take x~. The number beside it is that of the samples added so far, of all workers."""
        self.transport.isend(None, SERVER, "fetch", n=self.steps)
        center = self.transport.recv(SERVER, "parameters")
        self.descent.samples = self.descent.processed = center.n
        self.over = center.n >= self.until
        center.copy_to(self.center)

    def push(self, tag: str = "push") -> None:
        """d <- alpha (x_k - x~); x_k <- x_k - d; the server's x~ <- x~ + d. Without a step since the last: d = 0."""
        torch.sub(self.replica.x, self.center, out=self.difference).mul_(self.rate if self.n_taken else 0.0)
        self.replica.x.sub_(self.difference)
        self.transport.isend(self.difference, SERVER, tag, n=self.n_taken).wait()
        self.n_taken = 0

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """This worker's own steps, one after the other, until the server ends the epoch."""
        self.over = False
        while not self.over:
            yield self.steps

    # Server

    def serve(self) -> None:
        """Add what is pushed and send x~ to who fetches, until the epoch has its samples and all workers fetch."""
        for message in self.workers.messages("fetch", "push", until=self.until):
            if message.tag == "push":
                self.add(message)
            else:
                self.workers.steps[message.src] = message.n
            if self.descent.samples < self.until:
                self.reply()
        self.reply()

    def reply(self) -> None:
        """Send x~ to the workers that have asked for it."""
        for k in self.workers.take_waiting():
            self.workers.send_copy(self.replica.x, k, n=self.descent.samples)

    def add(self, push: Message) -> None:
        """x~ <- x~ + d."""
        if push.n:
            with self.transport.recorder.phase("update"):
                self.replica.x.add_(push.vector)
            self.workers.record_applied(push)
            self.descent.count(push.n)
        push.release()

    # Both

    def finish(self) -> None:
        """Push the last d, and learn x~; then average the buffers."""
        self.say_goodbye()
        if self.is_server:
            for push in self.workers.gather("rest"):
                self.add(push)
                self.workers.note_update()
            self.reply()
        else:
            self.push("rest")
            self.transport.recv(SERVER, "parameters").copy_to(self.center)
        self.average_buffers()

    def model(self) -> torch.Tensor:
        """Return x~ [n], on a worker as it was learnt last."""
        return self.replica.x if self.is_server else self.center
