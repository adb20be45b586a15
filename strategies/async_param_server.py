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

An epoch ends when the server has applied as many samples as the training set has: fast workers give more of them than
slow ones, and for a dead one the others do, each from its own part of the batches to come. A gradient that comes later
opens the next epoch.
"""

from collections.abc import Iterator
from typing import Any

import torch

from strategies.first_come_server import FirstComeServer
from strategies.param_server import SERVER, Mean
from transports.base import Message


class AsyncParamServer(FirstComeServer):
    """One server, and N - 1 workers, each at its own pace."""

    takes = ("aggregate", "max_staleness", "reads")
    aggregate = 1
    max_staleness: int | None = None  # in clocks; None: no bound

    def prepare(self) -> None:
        """Also know which gradients are where."""
        super().prepare()
        self.over = False
        self.waiting: set[int] = set()  # workers whose gradient is here, and that have no answer yet
        self.held: dict[int, Message] = {}  # gradients that came after the end of an epoch
        self.due: list[tuple[int, int, torch.Tensor]] = []  # worker, version read and gradient, of the next update
        self.slots: list[torch.Tensor] = []  # where gradients are kept until their update

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); x_k <- the server's x, unless the epoch is over."""
        self.push = self.transport.isend(self.replica.collect(n_samples), SERVER, "push")
        self._pull()

    def _pull(self) -> None:
        answer = self.transport.recv(SERVER, "parameters")
        self.over = answer.tensor is None
        if self.over:
            return
        self.look_at(answer)
        self.push.wait()
        self.replica.zero_grad()

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """This worker's own steps, one after the other, until the server ends the epoch."""
        if self.over:  # the answer to the last push is still to come
            self._pull()
        while not self.over:
            yield self.steps
            self.steps += 1

    # Server

    def serve(self) -> None:
        """Apply the samples of one epoch, or, if it is not known how many these are, all until the goodbyes."""
        self.here = set(self.active)
        self._answer()
        while self.here if self.goal is None else self.samples < self.goal:
            push = self.held.pop(min(self.held)) if self.held else self.receive()
            if push is not None:
                self._take(push)
            if self.goal is None or self.samples < self.goal:
                self._answer()
        if self.goal is not None:
            self._end_epoch()
        elif self.due:
            self._apply()

    def _take(self, push: Message) -> None:
        """Keep one gradient, and update x if it is the M-th."""
        k, g_and_n = push.src, push.vector
        self.clocks[k] += 1
        self.waiting.add(k)
        if self.aggregate == 1:
            self.due.append((k, self.read[k], g_and_n))
            push.keep()
            self._apply()
            push.release()
            return
        if len(self.slots) == len(self.due):
            self.slots.append(torch.empty_like(g_and_n))
        slot = self.slots[len(self.due)]
        push.copy_to(slot)
        self.due.append((k, self.read[k], slot))
        if len(self.due) == self.aggregate:
            self._apply()

    def _apply(self) -> None:
        """x <- optimizer(x, g), g being the mean of the gradients due, in the order of ranks."""
        mean = Mean(self.replica.g)
        for k, version_read, g_and_n in sorted(self.due, key=lambda due: due[0]):
            mean.add(g_and_n)
            self.applied(k, version_read, self.version)
        self.due.clear()
        self.parameter.grad = mean.g
        self.update(mean.n)
        self.served()

    def _answer(self) -> None:
        """Send x to the workers that wait for it, and are not too far ahead."""
        slowest = min((self.clocks[k] for k in self.here), default=0)
        for k in sorted(self.waiting):
            if self.max_staleness is None or self.clocks[k] - slowest <= self.max_staleness:
                self.waiting.remove(k)
                self.read[k] = self.version
                self._send_x(k)

    def _send_x(self, k: int) -> None:
        self.answers[k].copy_(self.replica.x)
        self.send(self.answers[k], k, "parameters")

    def _end_epoch(self) -> None:
        """Hold the gradients that are still being computed for the next epoch; tell all that this one is over."""
        for k in sorted(self.active - self.waiting - self.held.keys()):
            push = self.receive(k)
            if push is not None:
                self.held[k] = push.keep()
        self.tell(None, "parameters")

    def leave(self, k: int) -> None:
        """Also forget what was to be answered or applied."""
        super().leave(k)
        self.waiting.discard(k)
        if k in self.held:
            self.held.pop(k).release()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Server: go on with the clocks as near to each other as the bound keeps them."""
        super().load_state_dict(state)
        if self.max_staleness is not None:
            least = max(self.clocks.values()) - self.max_staleness
            self.clocks = {k: max(clock, least) for k, clock in self.clocks.items()}

    def close(self) -> None:
        """Give back the gradients that came too late."""
        for push in self.held.values():
            push.release()
