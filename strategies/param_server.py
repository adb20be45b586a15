"""Synchronous parameter server: rank 0 keeps the parameters, N - 1 workers compute on one shard each.

In every step each worker k sends (n_k, g_k), its mean gradient over n_k samples; the server forms
g = sum n_k g_k / sum n_k, takes one optimizer step, and sends the new x to all workers (Li et al., OSDI 2014).
A worker sends and receives one vector a step; the server N - 1 of each.
"""

import torch

from strategies.base import Strategy
from transports.base import Message, Work

SERVER = 0


class Mean:
    """The mean g of gradients g_k, weighted with their samples n_k, as they are added one by one.

    g <- g + n_k / n (g_k - g), n being the sum of n_k so far, written into the vector `out`. A single gradient is its
    own mean, and left where it is.
    """

    def __init__(self, out: torch.Tensor) -> None:
        self.out = out
        self.g = out
        self.n = 0

    def add(self, g_and_n: torch.Tensor) -> None:
        """Take in one more vector (g_k, n_k)."""
        g_k, n_k = g_and_n[:-1], int(g_and_n[-1])
        self.n += n_k
        self.g = g_k if self.n == n_k else torch.lerp(self.g, g_k, n_k / self.n, out=self.out)


class ParamServer(Strategy):
    """One server, N - 1 workers in lock-step."""

    min_ranks = 2

    @classmethod
    def roles(cls, world_size: int) -> list[str]:
        """Rank 0 serves, the others work."""
        return ["server"] + ["worker"] * (world_size - 1)

    def prepare(self) -> None:
        """Worker: have a place for x_k while it is not the server's x that is read."""
        self.own_x = self.replica.x
        self.answer: Message | None = None

    def step(self, n_samples: int) -> None:
        """Worker: send (g_k, n_k); x_k <- the server's new x, which is read where it is, until the next step."""
        self.give_back()
        push = self.transport.isend(self.replica.collect(n_samples), SERVER, "push")
        self.look_at(self.transport.recv(SERVER, "parameters"))
        push.wait()
        self.replica.zero_grad()

    def look_at(self, answer: Message) -> None:
        """Worker: x_k is what the server has sent, in its memory."""
        self.give_back()
        self.answer = answer.keep()
        self.replica.look_at(answer.vector)

    def give_back(self) -> None:
        """Worker: let the server change what was looked at."""
        if self.answer:
            self.answer.release()
            self.answer = None

    def settle(self) -> None:
        """Worker: have x_k in memory of its own."""
        if self.answer:
            self.replica.move_to(self.own_x)
            self.give_back()

    def serve(self) -> None:
        """Server: g <- sum of n_k g_k / sum of n_k over the workers k; x <- optimizer(x, g); send x to all of them."""
        workers = list(self.transport.peers)
        replies: list[Work] = []
        while workers:
            mean, pushes = Mean(self.replica.g), []
            for k in list(workers):
                push = self.transport.recv(k, "push")
                if push.tensor is None:  # goodbye
                    workers.remove(k)
                else:
                    mean.add(push.vector)
                    pushes.append(push.keep())
            for reply in replies:  # x is not to be changed while a worker still reads it
                reply.wait()
            if workers:
                self.parameter.grad = mean.g
                self.update(mean.n)
            for push in pushes:
                push.release()
            replies = [self.transport.isend(self.replica.x, k, "parameters") for k in workers]
            if workers:
                self.served()

    def finish(self) -> None:
        """Say goodbye, and average the buffers."""
        if self.transport.rank != SERVER:
            self.settle()
            self.transport.isend(None, SERVER, "push")
        self.average_buffers()

    def average_buffers(self) -> None:
        """Average the workers' buffers b on the server, which sends the mean to all."""
        b = self.replica.b
        if self.transport.rank != SERVER:
            if b.numel():
                self.transport.isend(b, SERVER, "buffers").wait()
                self.transport.recv(SERVER, "mean buffers").copy_to(b)
        elif b.numel():
            b.zero_()
            for k in self.transport.peers:
                with self.transport.recv(k, "buffers") as buffers:
                    b.add_(buffers.vector)
            b.div_(len(self.transport.peers))
            for work in [self.transport.isend(b, k, "mean buffers") for k in self.transport.peers]:
                work.wait()
