"""Asynchronous parameter server: the server applies gradients as they come, and no worker waits for the slowest.

On arrival of (n_k, g_k), computed on version v: x <- optimizer(x, g_k), version <- version + 1, and worker k gets the
new x. The staleness of a gradient is the version that it is applied to, less v (AsySG-con; Lian et al., 2015, arXiv
1506.08272).

- `aggregate` M: M gradients make one update, their sample-weighted mean (the paper sums them; with the mean a learning
  rate keeps its meaning). Workers get x at once, also between two updates.
- `max_staleness` s (stale synchronous parallel, Ho et al., 2013): a worker may be at most s of its own steps (clocks)
  ahead of the slowest; one that is further ahead gets its x when the slowest has caught up. In versions, with one
  gradient an update and W workers, no gradient is then staler than (2 s + 1) (W - 1), even if workers die and return.
  s = 0 with M = W is ParamServer, bit for bit.

An epoch ends when the server has applied as many samples as the training set has: fast workers give more of them than
slow ones, and for a dead one the others do, each from its own part of the batches to come. From then on the server
does not reply until the gradients that are still being computed have come; they are applied, and all get the same x.
"""

from dataclasses import dataclass, replace

from gradwire.core.records.errors import between
from gradwire.core.records.options import option
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import RETURNING, Footprint, Weight
from gradwire.core.strategy.workers import GRADIENT, SERVER
from gradwire.core.transports.base import Message


@dataclass(kw_only=True)
class AsyncParamServer(Served):
    """The server applies each gradient when it comes and replies at once: no worker waits, and gradients may be stale.

    A clock never falls, for the bound counts a worker's messages in all its lives. One that was started again begins
    with its own clock, or with that of the slowest of the living if this is greater, and like all others it gets x when
    the bound allows its clock: at once, unless it died ahead of them. If all are dead, it begins with the greatest
    clock of all. None waits for the dead. At the start of an epoch all workers have the same x; a worker that is more
    than s behind the furthest is then counted as s behind.
    """

    aggregate: int = 1
    """M: gradients that make one update, their mean."""
    max_staleness: int | None = option(None, least=0)
    """s: how many of its own steps a worker may be ahead of the slowest. Default: any number."""

    # Late gradients act like momentum.
    traits = replace(Served.traits, asynchronous=True, deaths=RETURNING, defaults={"momentum": 0.0})

    def memory(self, role: str) -> Footprint:
        """A server has a copy of x on its way to each worker, and the gradients of an update that are here."""
        if role == "worker":
            return super().memory(role)
        return replace(super().memory(role), other="(N - 1) P" if self.aggregate == 1 else None)

    def check(self, run: RunSize) -> None:
        """An epoch must have the gradients of an update."""
        between(self, "aggregate", 1, run.workers * run.steps_per_epoch, "the gradients of an epoch")

    def stalest(self, workers: int) -> int | None:
        """With one gradient an update, (2 s + 1) (W - 1)."""
        if self.max_staleness is None or self.aggregate > 1:
            return None
        return (2 * self.max_staleness + 1) * (workers - 1)

    def weight(self, workers: int) -> Weight | str:
        """M gradients make an update."""
        return Weight(self.aggregate)

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); x_k <- the server's x. The number beside x counts the samples applied so far."""
        gradient = self.send_gradient(n_samples)
        parameters = self.transport.recv(SERVER, "parameters")
        self.over = parameters.n >= self.updater.until
        self.replica.adopt(parameters)
        gradient.wait()  # redundant in every order: the server gives a gradient back before it replies
        self.replica.zero_grad()
        self.steps += 1

    # Server

    def serve(self) -> None:
        """Apply the gradients of one epoch as they come: M of them make an update."""
        due: list[Message] = []
        if self.max_staleness is not None:
            self.workers.limit_gap(self.max_staleness)
        gradients = self.workers.messages(
            GRADIENT, until=self.updater.until, on_worker_left=self.reply, may_begin=self.is_within_bound
        )
        for gradient in gradients:
            due.append(gradient if self.aggregate == 1 else gradient.detach())
            if len(due) == self.aggregate:
                self.apply(sorted(due, key=lambda gradient: gradient.src))
                due = []
            self.reply()
        if due:
            self.apply(sorted(due, key=lambda gradient: gradient.src))
        for k in self.workers.take_waiting():
            self.send_x(k)
        self.workers.note_update()

    def reply(self) -> None:
        """Send x to the workers that wait for it, unless they are too far ahead, or the epoch has its samples."""
        if not self.updater.is_over:
            for k in self.workers.take_waiting(self.is_within_bound):
                self.send_x(k)

    def is_within_bound(self, k: int) -> bool:
        """Return whether worker k is at most s steps ahead of the slowest."""
        return self.max_staleness is None or self.workers.steps[k] - self.workers.slowest <= self.max_staleness

    def send_x(self, k: int) -> None:
        """Send worker k the parameters."""
        self.workers.send_copy(self.replica.x, k, n=self.updater.samples)
