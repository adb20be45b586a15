"""Asynchronous parameter server: the server applies gradients as they come, nobody waits for the slowest.

On arrival of (n_k, g_k), computed on version v: x <- optimizer(x, g_k), version <- version + 1, and worker k gets the new x.
The staleness of a gradient is the version it is applied to less v (Lian et al., 2015, arXiv 1506.08272: AsySG-con).

- `aggregate` M: M gradients make one update, their sample-weighted mean in the order of ranks (the paper sums them; with
  the mean a learning rate keeps its meaning). A worker gets x at once, also between two updates.
- `max_staleness` s (Ho et al., 2013, stale synchronous parallel): a worker may be at most s of its own steps (clocks) ahead of
  the slowest; one that is further ahead gets its x when the slowest has caught up. In versions, with one gradient an
  update and W workers, no gradient is then staler than (2 s + 1) (W - 1). s = 0 with M = W is ParamServer, bit for bit.

An epoch ends when the server has consumed as many samples as the training set has: fast workers take more of them. What
arrives later opens the next epoch. The batches are those of the batch plan, each worker's parts in its own time.
"""

from collections.abc import Iterator

import torch

from strategies.param_server import SERVER, ParamServer
from transports.base import ANY, Message

UNBOUNDED = -1


class AsyncParamServer(ParamServer):
    """One server that never waits for all; N - 1 workers, each at its own pace."""

    replicas_agree = False
    max_staleness = UNBOUNDED
    aggregate = 1

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); x_k <- the server's x, unless the epoch is over."""
        self.push = self.transport.isend(self.replica.collect(n_samples), SERVER, "push")
        self._pull()

    def _pull(self) -> None:
        with self.transport.recv(SERVER, "parameters") as answer:
            self.over = answer.tensor is None
            if not self.over:
                self.replica.x.copy_(answer.vector)
        if not self.over:
            self.push.wait()
            self.replica.g.zero_()

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """This worker's own steps, one after the other, until the server ends the epoch."""
        if self.over:  # the answer to the last push of the epoch before is still to come
            self._pull()
        while not self.over:
            yield self.clock
            self.clock += 1

    # Server

    def serve(self) -> None:
        """Consume one epoch's samples."""
        self.goal += self.samples_of_epoch
        held, self.held = self.held, []
        for push in held:
            self._take(push)
        while self.samples < self.goal:
            self._take(self.transport.recv(self._next_source(), "push"))
        for k in self.busy:
            self.held.append(self.transport.recv(k, "push"))
        for k in self.transport.peers:
            self.transport.isend(None, k, "parameters")

    def _take(self, push: Message) -> None:
        """Add one gradient to the next update, take that if it is due, and answer whom the bound now allows."""
        k = push.src
        self.busy.discard(k)
        self.clocks[k] += 1
        ...
