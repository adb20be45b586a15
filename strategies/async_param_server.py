"""Asynchronous parameter server: the server applies gradients as they come, and nobody waits for the slowest.

On arrival of (n_k, g_k), computed on version v: x <- optimizer(x, g_k), version <- version + 1, and worker k gets the
new x. The staleness of a gradient is the version that it is applied to, less v (AsySG-con; Lian et al., 2015, arXiv
1506.08272).

- `aggregate` M: M gradients make one update, their sample-weighted mean (the paper sums them; with the mean a learning
  rate keeps its meaning). Workers get x at once, also between two updates.
- `max_staleness` s (stale synchronous parallel, Ho et al., 2013): a worker may be at most s of its own steps (clocks)
  ahead of the slowest; one that is further ahead gets its x when the slowest has caught up. In versions, with one
  gradient an update and W workers, no gradient is then staler than (2 s + 1) (W - 1). s = 0 with M = W is ParamServer,
  bit for bit.

An epoch ends when the server has applied as many samples as the training set has: fast workers give more of them. What
comes later opens the next epoch.
"""

from collections.abc import Iterator

import torch

from strategies.param_server import SERVER, ParamServer
from strategies.replica import Replica
from transports.base import ANY, Message, PeerLost, Transport


class AsyncParamServer(ParamServer):
    """One server, and N - 1 workers, each at its own pace."""

    replicas_agree = False
    own_pace = True
    takes = ("aggregate", "max_staleness")
    aggregate = 1
    max_staleness: int | None = None  # in clocks; None: no bound
    replay: Iterator[int] | None = None  # whose gradients come when, as in an earlier run

    def start(self, replica: Replica, transport: Transport) -> None:
        """Also have room for the gradients of an update, and an answer for each worker."""
        super().start(replica, transport)
        n, dtype = replica.x.numel(), replica.x.dtype
        self.version = 0
        self.goal = 0
        self.over = False
        self.active = set(transport.peers)
        self.clocks = dict.fromkeys(transport.peers, 0)  # gradients that came from each worker
        self.read = dict.fromkeys(transport.peers, 0)  # the version that each worker computes on
        self.waiting: set[int] = set()  # workers whose gradient is here, and that have no answer yet
        self.held: dict[int, Message] = {}  # gradients that came after the end of an epoch
        self.due: list[tuple[int, int, torch.Tensor]] = []  # worker, version read and gradient, of the next update
        # From a buffer of its own for each worker, for x changes while one reads.
        self.answers = [transport.allocate(n, dtype) for _ in range(transport.world_size)]
        is_server = transport.rank == SERVER
        self.slots = [torch.empty_like(replica.g_and_n) for _ in range(self.aggregate if is_server else 0)]

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); x_k <- the server's x, unless the epoch is over."""
        self.push = self.transport.isend(self.replica.collect(n_samples), SERVER, "push")
        self._pull()

    def _pull(self) -> None:
        with self.transport.recv(SERVER, "parameters") as answer:
            self.over = answer.tensor is None
            if self.over:
                return
            self.replica.x.copy_(answer.vector)
        self.push.wait()
        self.replica.g.zero_()

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """This worker's own steps, one after the other, until the server ends the epoch."""
        if self.over:  # the answer to the last push is still to come
            self._pull()
        while not self.over:
            yield self.steps
            self.steps += 1

    # Server

    def serve(self) -> None:
        """Apply one epoch's samples, or, if it is not known how many these are, all until the workers' goodbyes."""
        self.goal += self.samples_of_epoch or 0
        self._answer()
        while self.active and (self.samples_of_epoch is None or self.samples < self.goal):
            push = self._next_push()
            if push is None:
                continue
            self._take(push)
            if self.samples_of_epoch is None or self.samples < self.goal:
                self._answer()
        if self.samples_of_epoch is not None:
            for k in self.active - self.waiting:
                self.held[k] = self.transport.recv(k, "push")
            for k in self.active:
                self.transport.isend(None, k, "parameters")

    def _next_push(self) -> Message | None:
        """Return the gradient that is next, None if a worker has gone instead."""
        k = next(self.replay) if self.replay else next(iter(self.held), ANY)
        if k in self.held:
            return self.held.pop(k)
        try:
            push = self.transport.recv(k, "push")
        except PeerLost as lost:
            self._leave(lost.rank)
            return None
        if push.tensor is None:  # goodbye
            self._leave(push.src)
            return None
        return push

    def _leave(self, k: int) -> None:
        """Wait for worker k no longer."""
        self.active.discard(k)
        self.waiting.discard(k)
        self._answer()

    def _take(self, push: Message) -> None:
        """Keep one gradient, and update x if it is the M-th."""
        k = push.src
        self.clocks[k] += 1
        self.waiting.add(k)
        slot = self.slots[len(self.due)]
        push.copy_to(slot)
        self.due.append((k, self.read[k], slot))
        if len(self.due) == self.aggregate:
            self._apply()

    def _apply(self) -> None:
        """g <- sum of n_k g_k / sum of n_k over the gradients due, in the order of ranks; x <- optimizer(x, g)."""
        g, n = self.replica.g.zero_(), torch.zeros_like(self.replica.g[:1])
        for k, version_read, g_and_n in sorted(self.due, key=lambda due: due[0]):
            g.addcmul_(g_and_n[:-1], g_and_n[-1:])
            n.add_(g_and_n[-1:])
            self.applied(k, version_read, self.version)
        g.div_(n)
        self.update(int(n))
        self.version += 1
        self.due.clear()

    def _answer(self) -> None:
        """Send x to the workers that wait for it, and are not too far ahead."""
        slowest = min((self.clocks[k] for k in self.active), default=0)
        for k in sorted(self.waiting):
            if self.max_staleness is None or self.clocks[k] - slowest <= self.max_staleness:
                self.waiting.remove(k)
                self.read[k] = self.version
                self.answers[k].copy_(self.replica.x)
                self.transport.isend(self.answers[k], k, "parameters")

    def finish(self) -> None:
        """Average the buffers; without a number of samples, say goodbye first."""
        if self.transport.rank != SERVER and self.samples_of_epoch is None:
            self.transport.isend(None, SERVER, "push")
        self.average_buffers()

    def close(self) -> None:
        """Give back the gradients that came too late."""
        for push in self.held.values():
            push.release()
