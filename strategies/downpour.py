"""Downpour SGD: workers take steps of their own, and now and then send how far they have come.

Each worker runs the optimizer on its own x_k and adds up its movement d_k (-eta g for plain SGD). Every `n_push` steps
it sends d_k, and the server adds: x <- x + d_k. Every `n_pull` steps it takes the server's x; a pull does not clear
what is not pushed yet. (Dean et al., 2012, Large scale distributed deep networks, algorithm 7.1; there the server may
run Adagrad. Here it only adds, so the optimizer is the workers', each with its own state.)

An epoch ends as in AsyncParamServer. Then every worker sends what it has left, and takes x.
"""

from collections.abc import Iterator

import torch

from strategies.first_come_server import FirstComeServer
from strategies.param_server import SERVER
from transports.base import Message

PULL = "pull"


class Downpour(FirstComeServer):
    """One server that adds, and N - 1 workers, each at its own pace."""

    takes = ("n_push", "n_pull")
    n_push = 1
    n_pull = 1

    def prepare(self) -> None:
        """Also have d_k, with two more elements: the number of its samples, and of the worker's steps so far."""
        super().prepare()
        self.movement = self.transport.allocate(self.replica.x.numel() + 2, self.replica.x.dtype)
        self.before = torch.empty_like(self.replica.x)
        self.over = False

    # Worker

    def step(self, n_samples: int) -> None:
        """d_k <- d_k + what the optimizer adds to x_k; push and pull if it is time to."""
        self.replica.collect(n_samples)
        self.before.copy_(self.replica.x)
        self.update(n_samples)
        self.movement[:-2].add_(self.replica.x).sub_(self.before)
        self.movement[-2] += n_samples
        self.replica.zero_grad()
        self.steps += 1
        self.movement[-1] = self.steps
        if self.steps % self.n_push == 0:
            self._push()
        if self.steps % self.n_pull == 0 and not self.over:
            self._pull()

    def _push(self) -> None:
        push = self.transport.isend(self.movement, SERVER, "push")
        self._listen()
        push.wait()
        self.movement.zero_()

    def _pull(self) -> None:
        self.transport.isend(PULL, SERVER, "push")
        self._listen()
        if not self.over:
            self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)

    def _listen(self) -> None:
        """Hear how many samples the server has applied, or that the epoch is over."""
        samples = self.transport.recv(SERVER, "samples").object
        self.over = samples is None
        if not self.over:
            self.samples = self.processed = samples

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """This worker's own steps, one after the other, until the server ends the epoch."""
        self.over = False
        while not self.over:
            yield self.steps

    # Server

    def serve(self) -> None:
        """Add the movements of one epoch, or, if its samples are not known, all until the goodbyes."""
        self.here = set(self.active)
        while self.here if self.goal is None else self.samples < self.goal:
            request = self.receive()
            if request is not None:
                self._answer(request, self.samples)
        if self.goal is not None:
            for k in sorted(self.active):
                request = self.receive(k)
                if request is not None:
                    self._answer(request, None)

    def _answer(self, request: Message, samples: int | None) -> None:
        """Add what was pushed, or send x to who pulls; None tells that the epoch is over."""
        k = request.src
        if request.object == PULL:
            self.send(samples, k, "samples")
            if samples is not None:
                self._send_x(k)
            return
        self._add(request)
        self.send(None if samples is None else self.samples, k, "samples")

    def _send_x(self, k: int) -> None:
        self.read[k] = self.version
        self.answers[k].copy_(self.replica.x)
        self.send(self.answers[k], k, "parameters")

    def _add(self, push: Message) -> None:
        """x <- x + d_k."""
        with push:
            n, steps = map(int, push.keep().vector[-2:])
            if n:
                with self.transport.recorder.phase("update"):
                    self.replica.x.add_(push.vector[:-2])
                self.applied(push.src, self.read[push.src], self.version)
                self.clocks[push.src] = steps
                self.samples += n
                self.processed += n
                self.served()

    # Both

    def finish(self) -> None:
        """Send what is left of d_k, take x, and average the buffers."""
        if self.transport.rank == SERVER and self.goal is not None:
            for k in sorted(self.active):
                rest = self.receive(k)
                if rest is not None:
                    self._add(rest)
            for k in sorted(self.active):
                self._send_x(k)
        elif self.transport.rank != SERVER and self.goal is not None:
            push = self.transport.isend(self.movement, SERVER, "push")
            self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)
            push.wait()
            self.movement.zero_()
        elif self.transport.rank != SERVER:
            self._push()
        super().finish()
