"""Backup workers: a synchronous server that does not wait for its slowest b workers.

Every gradient belongs to the step whose x it was computed on. Of W workers, the first W - b gradients of step t close
it: g = sum n_k g_k / sum n_k over those, one optimizer step, and the new x goes to these workers. A gradient that comes
later is counted and dropped, and its worker continues with the current x and step. (Chen et al., 2016, arXiv
1604.00981, with N = W - b.)

A late worker skips its samples of the steps in between.
A worker that dies takes its part of the batches with it: steps close with fewer, and its samples are lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import option
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import SURVIVED, Cost, Footprint, Traffic, Weight
from gradwire.core.strategy.workers import GRADIENT, SERVER
from gradwire.core.transports.base import Message


@dataclass(kw_only=True)
class BackupWorkers(Served):
    """A synchronous server that closes each step without its b slowest workers, whose gradients it drops."""

    n_backup: int = option(1, least=0)
    """b: how many gradients of a step are not waited for."""

    traits = replace(Served.traits, ranks=(3, None), deaths=SURVIVED)

    def cost(self, kind: str | None = None) -> Cost:
        """As with one server that waits for all. Which worker is late, and the time that saves, depends on the cards.

        In order, one gradient passes while the server sends, however many are dropped. With a codec, x for the late
        may take longer on its way than the step: then nothing is predicted.
        """
        in_order = None if kind else Traffic("2", "(N - min(1, n_backup)) P")
        return replace(super().cost(kind), in_order=in_order)

    def memory(self, role: str) -> Footprint:
        """A server has a copy of x on its way to each worker."""
        return replace(super().memory(role), other="(N - 1) P" if role == "server" else "0")

    def check(self, run: RunSize) -> None:
        """A step waits for at least one worker."""
        if self.n_backup >= run.workers:
            raise UsageError(f"--n_backup {self.n_backup}: must be fewer than the {run.workers} workers")

    def weight(self, workers: int) -> Weight | str:
        """A step takes those that are on time."""
        return Weight(workers - self.n_backup)

    def setup(self) -> None:
        """Server: keep the gradients of the step, by worker."""
        super().setup()
        self.on_time: dict[int, Message] = {}

    def join(self, resumed: bool) -> None:
        """Server: all workers begin with the same step."""
        if self.is_server:
            self.workers.steps = dict.fromkeys(self.workers.steps, self.updater.version)
        super().join(resumed)

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); x_k <- the server's x. The number beside x is the number of the next step."""
        gradient = self.send_gradient(n_samples)
        parameters = self.transport.recv(SERVER, "parameters")
        self.next_step = parameters.n
        self.replica.adopt(parameters)
        gradient.wait()
        self.replica.zero_grad()

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """The steps that the server says, instead of all of them."""
        self.next_step = max(start, self.steps)  # a resumed run begins where the server says
        while self.next_step < stop:
            yield self.next_step

    # Server

    def serve(self) -> None:
        """Close step after step with the gradients that are on time, until all workers have said goodbye."""
        for gradient in self.workers.messages(GRADIENT, on_worker_left=self.close_step):
            if gradient.version < self.updater.version:
                self.workers.drop(gradient)
            else:
                self.on_time[gradient.src] = gradient.log_receipt()
            self.close_step()

    def close_step(self) -> None:
        """With W - b gradients: x <- optimizer(x, their mean). Send x to the workers that do not wait for the step."""
        W = len(self.transport.peers)
        there_may_be = len(self.workers.present | self.on_time.keys())  # also gradients of workers that died since
        if self.on_time and len(self.on_time) >= min(W - self.n_backup, there_may_be):
            # The gradients that come later were computed for this step too.
            self.apply([self.on_time[k] for k in sorted(self.on_time)], processed=W / len(self.on_time))
            self.on_time.clear()
        for k in self.workers.take_waiting(lambda k: k not in self.on_time):
            self.workers.send_copy(self.replica.x, k, n=self.updater.version)
