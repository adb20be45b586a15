"""Backup workers: a synchronous server that does not wait for its slowest b workers.

Every gradient belongs to the step whose x it was computed on. Of N workers, the first N - b gradients of step t close
it: g = sum n_k g_k / sum n_k over those, one optimizer step, and the new x goes to these workers. A gradient that comes
after its step has closed is received, counted and dropped, and its worker goes on with the current x and step: its
samples of the steps in between are skipped. (Chen et al., 2016, arXiv 1604.00981.) b = 0 is ParamServer, bit for bit.
"""

from collections.abc import Iterator

import torch

from strategies.param_server import SERVER, ParamServer
from strategies.replica import Replica
from transports.base import ANY, Message, Transport


class BackupParamServer(ParamServer):
    """ParamServer that closes a step with the first N - b gradients."""

    takes = ("backup_workers",)
    backup_workers = 0

    def start(self, replica: Replica, transport: Transport) -> None:
        """Also have an answer for each worker: a slow reader must not hold up the next update."""
        super().start(replica, transport)
        self.answers = [transport.allocate(replica.x.numel(), replica.x.dtype) for _ in range(transport.world_size)]
        self.step_of = dict.fromkeys(transport.peers, 0)  # whose x each worker computes on
        self.dropped = 0

    def step(self, n_samples: int) -> None:
        """Worker: send (g_k, n_k); get the step to go on with, and its x."""
        push = self.transport.isend(self.replica.collect(n_samples), SERVER, "push")
        self.next_step = self.transport.recv(SERVER, "step").object
        self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)
        push.wait()
        self.replica.g.zero_()

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Worker: the steps that the server says, in the place of all of them."""
        self.next_step = start
        while self.next_step < stop:
            yield self.next_step

    def serve(self) -> None:
        """Server: close step after step until every worker has said goodbye."""
        workers = set(self.transport.peers)
        on_time: dict[int, Message] = {}
        while workers:
            push = self.transport.recv(ANY, "push")
            k = push.src
            if push.tensor is None:  # goodbye
                workers.remove(k)
            elif self.step_of[k] < self.steps:
                push.release()
                self.dropped += 1
                self.drop(k, self.step_of[k], self.steps)
                self._answer(k)
            else:
                on_time[k] = push
            if on_time and len(on_time) >= min(len(workers), len(self.transport.peers) - self.backup_workers):
                self._close_step(on_time)
                self.served()
                for k in sorted(on_time):
                    self._answer(k)
                on_time.clear()

    def _close_step(self, on_time: dict[int, Message]) -> None:
        """g <- sum of n_k g_k / sum of n_k, in the order of ranks; x <- optimizer(x, g)."""
        g, n = self.replica.g.zero_(), torch.zeros_like(self.replica.g[:1])
        for k, push in sorted(on_time.items()):
            self.applied(k, self.steps, self.steps)
            with push:
                g.addcmul_(push.vector[:-1], push.vector[-1:])
                n.add_(push.vector[-1:])
        g.div_(n)
        self.update(int(n))

    def _answer(self, k: int) -> None:
        """Send the current step and x, from a buffer of k's own."""
        self.answers[k].copy_(self.replica.x)
        self.step_of[k] = self.steps
        self.transport.isend(self.steps, k, "step")
        self.transport.isend(self.answers[k], k, "parameters")
