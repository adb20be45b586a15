"""Backup workers: a synchronous server that does not wait for its slowest b workers.

Every gradient belongs to the step whose x it was computed on. Of N workers, the first N - b gradients of step t close
it: g = sum n_k g_k / sum n_k over those, one optimizer step, and the new x goes to these workers. A gradient that comes
after its step has closed is received, counted and dropped, and its worker goes on with the current x and step: its
samples of the steps in between are skipped. (Chen et al., 2016, arXiv 1604.00981.) b = 0 is ParamServer, bit for bit.

A worker that dies takes its part of the batches with it: steps close with fewer, and its samples are lost.
"""

from collections.abc import Iterator
from typing import Any

from strategies.first_come_server import FirstComeServer
from strategies.param_server import SERVER, Mean
from transports.base import Message


class BackupParamServer(FirstComeServer):
    """ParamServer that closes a step with the first N - b gradients."""

    replicas_agree = True  # when an epoch has ended
    own_pace = False
    takes = ("backup_workers",)
    backup_workers = 0

    def prepare(self) -> None:
        """Also have room for the gradients of a step."""
        super().prepare()
        self.on_time: dict[int, Message] = {}

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); get the step to go on with, and its x."""
        push = self.transport.isend(self.replica.collect(n_samples), SERVER, "push")
        self.next_step = self.transport.recv(SERVER, "step").object
        self.look_at(self.transport.recv(SERVER, "parameters"))
        push.wait()
        self.replica.zero_grad()

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """The steps that the server says, in the place of all of them."""
        self.next_step = start
        while self.next_step < stop:
            yield self.next_step

    # Server

    def serve(self) -> None:
        """Close step after step until every worker has said goodbye."""
        self.here = set(self.active)
        while self.here:
            push = self.receive()
            if push is not None:
                self._take(push)
            enough = min(len(self.here), len(self.transport.peers) - self.backup_workers)
            if self.on_time and len(self.on_time) >= enough:
                self._close_step()

    def _take(self, push: Message) -> None:
        k = push.src
        if self.read[k] < self.steps:
            push.release()
            self.drop(k, self.read[k], self.steps)
            self._answer(k)
        else:
            self.on_time[k] = push.keep()

    def _close_step(self) -> None:
        """x <- optimizer(x, the mean of the gradients on time)."""
        mean = Mean(self.replica.g)
        for k, push in sorted(self.on_time.items()):
            mean.add(push.vector)
            self.applied(k, self.steps, self.steps)
        self.parameter.grad = mean.g
        # The gradients that come later were computed for this step too.
        self.update(mean.n, processed=mean.n * len(self.transport.peers) / len(self.on_time))
        for push in self.on_time.values():
            push.release()
        self.served()
        for k in sorted(self.on_time):
            self._answer(k)
        self.on_time.clear()

    def _answer(self, k: int) -> None:
        """Send the current step and x."""
        self.answers[k].copy_(self.replica.x)
        self.read[k] = self.steps
        self.send(self.steps, k, "step")
        self.send(self.answers[k], k, "parameters")

    def finish(self) -> None:
        """Say goodbye, and average the buffers."""
        if self.transport.rank != SERVER:
            self.settle()
            self.transport.isend(None, SERVER, "push")
        self.average_buffers()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Server: all workers begin with the same step."""
        super().load_state_dict(state)
        self.clocks = dict.fromkeys(self.clocks, self.steps)
