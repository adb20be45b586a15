"""The base of strategies with a server: rank 0 keeps the parameters x, N - 1 workers compute on one shard each.

How gradients (n_k, g_k) become a step of x, how a run begins, and how an epoch ends. Each strategy defines
`step` on a worker and `serve` on the server: when it takes gradients and whom it answers.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from gradwire.core.strategy.arrivals import Arrivals
from gradwire.core.strategy.codes import KINDS
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Cost, Traffic, Traits
from gradwire.core.strategy.workers import GRADIENT, SERVER
from gradwire.core.transports.base import Message, Work


@dataclass(kw_only=True)
class Served(Strategy):
    """Workers that send gradients to a server, which sends them parameters."""

    traits = Traits(ranks=(2, None), carries=frozenset(KINDS), server_updates=True)

    def cost(self, kind: str | None = None) -> Cost:
        """A gradient from each worker, and x to each."""
        return Cost(worker=Traffic("1", "G"), server=Traffic("N - 1", "(N - 1) P"))

    def roles(self, world_size: int) -> list[str]:
        """Rank 0 serves, the others work."""
        return ["server"] + ["worker"] * (world_size - 1)

    def setup(self) -> None:
        """Server: know the workers. Worker: know how many steps it has taken, and whether the epoch is over."""
        roles = self.roles(self.transport.world_size)
        self.is_server = roles[self.transport.rank] == "server"
        if self.is_server:
            ranks = [rank for rank, role in enumerate(roles) if role == "worker"]
            self.workers = self._make_workers(ranks)
            self.keep("worker_steps", self.workers)
        self.steps = 0
        self.over = False

    def _make_workers(self, ranks: list[int]) -> Arrivals:
        about = ranks, self.replica, self.transport, self.updater, self.coding
        if not self.traits.workers_may_die:
            return Arrivals(*about)
        from gradwire.core.strategy.survivors import Survivors

        return Survivors(*about)

    # Worker

    def send_gradient(self, n_samples: int) -> Work:
        """Send (n_k, g_k); where there is a codec, the code of g_k."""
        g = self.replica.collect()
        if self.coding:
            g = self.coding.encode(g)
            self.coding.tell([SERVER])
        return self.transport.isend(g, SERVER, GRADIENT, n=n_samples)

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """All steps; of an asynchronous worker, its own, one after the other, until the server ends the epoch."""
        if not self.traits.asynchronous:
            yield from super().steps_of_epoch(start, stop)
            return
        self.over = False
        while not self.over:
            yield self.steps

    # Server

    @abstractmethod
    def serve(self) -> None:
        """Answer the workers until the epoch is over."""

    def apply(self, gradients: Iterable[Message], processed: float = 1.0) -> None:
        """x <- optimizer(x, g), with g = sum n_k g_k / sum n_k over the gradients (n_k, g_k).

        `processed`: how many times their samples the workers have computed on for this step.
        """
        mean, used = Mean(self.replica.g), []
        missing: set[int] | None = None  # in all of them
        for gradient in gradients:
            if missing is None or missing:
                missing_here = self.updater.missing.find(gradient.vector)
                missing = missing_here if missing is None else missing & missing_here
            mean.add(gradient.vector, gradient.n)
            used.append(gradient.log_receipt())
            self.workers.record_applied(gradient)
        g = mean.copied() if self.updater.clip_norm else mean.g  # it is bounded in place
        self.updater.lacking = missing or set()
        self.updater.missing.mark(g, self.updater.lacking)
        self.updater.step(g, mean.n, processed=mean.n * processed)
        for gradient in used:
            gradient.release()

    # Both

    def join(self, resumed: bool) -> None:
        """Where workers may start late, each begins where the server is: see `Survivors`; else all begin together."""
        if not self.traits.workers_may_die:
            super().join(resumed)
            return
        from gradwire.core.strategy.survivors import Survivors, receive_position

        if self.is_server:
            assert isinstance(self.workers, Survivors)
            for k in self.workers.steps:
                self.workers.welcome(k)
        else:
            self.steps = receive_position(self.replica, self.transport, self.updater)

    def finish(self) -> None:
        """Worker: say goodbye. All: end the epoch with the same buffers and x."""
        self.say_goodbye()
        self.end_epoch()

    def say_goodbye(self) -> None:
        """Worker: copy x into memory of its own; end the epoch, unless the server has ended it."""
        if not self.is_server:
            self.replica.own()
            if not self.over:
                self.transport.isend(None, SERVER, "goodbye")

    def end_epoch(self) -> None:
        """Average the buffers b of the workers on the server, which sends all the mean, and x to whose x is older.

        Counts among the buffers have no mean: all get the greatest. Also if b is empty: a worker may have taken fewer
        steps than others, and where the server takes messages of anybody, none of the next epoch comes in this one.
        """
        if self.is_server:
            self.workers.end_epoch()
        else:
            counts = self.replica.counts
            if counts.numel():
                self.transport.isend(counts, SERVER, "counts")
            self.transport.isend(self.replica.b, SERVER, "buffers").wait()
            mean = self.transport.recv(SERVER, "mean buffers")
            mean.copy_to(self.replica.b)
            if counts.numel():
                with self.transport.recv(SERVER, "greatest counts") as greatest:
                    self.replica.counts = greatest.vector
            if mean.n:
                self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)


class Mean:
    """The mean g of gradients g_k, weighted with their samples n_k, as they are added one by one.

    g <- g + n_k / n (g_k - g), n being the sum of n_k so far, written into the first elements of `memory`. A single
    gradient is its own mean, and left where it is.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = self.g = memory
        self.n = 0

    def add(self, g_k: torch.Tensor, n_k: int) -> None:
        """Take in one more gradient [n], the mean over `n_k` samples."""
        self.n += n_k
        out = self.memory[: g_k.numel()]
        self.g = g_k if self.n == n_k else torch.lerp(self.g, g_k, n_k / self.n, out=out)

    def copied(self) -> torch.Tensor:
        """Return the mean, which may be changed: a single gradient, which lies with its worker, is copied."""
        own = self.memory[: self.g.numel()]
        return own if self.g.data_ptr() == own.data_ptr() else own.copy_(self.g)
