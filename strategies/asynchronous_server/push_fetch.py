"""Workers with parameters of their own: each pushes vectors that the server adds to its x, and fetches x, at its pace.

An epoch ends when the server has added what was computed on as many samples as the training set has: then it answers no
fetch until every worker fetches; all push what they have left, and get the same x.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import RETURNING, Footprint, Traits
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Message


@dataclass(kw_only=True)
class PushFetch(Served, ABC):
    """The server's side, and the worker's requests. The algorithm defines the pushes, and their effect on x.

    The staleness of a push: how many versions others have made between the worker's last fetch and the moment when
    its push is added. Its own pushes do not count, for x_k holds what they carry: a worker alone is never stale.
    """

    traits = Traits(asynchronous=True, ranks=(2, None), deaths=RETURNING)  # pushes are no gradients: no codecs

    def memory(self, role: str) -> Footprint:
        """Two vectors of x's length; a server has no gradient, and a copy of x on its way to each worker."""
        if role == "server":
            return Footprint(gradients="0", optimizer_state="0", other="(N + 1) P")
        return Footprint(other="2 P")

    # Worker

    @abstractmethod
    def push(self, tag: str = "push") -> None:
        """Send the movement for the server to add, with `send`; the last of an epoch has another tag."""

    @abstractmethod
    def take(self, parameters: Message) -> None:
        """Take over the server's x, and release the message."""

    def send(self, movement: torch.Tensor, n_samples: int, tag: str) -> None:
        """The server's x <- x + movement [n]; `n_samples`: those computed on since the last push. Blocks."""
        self.transport.isend(movement, SERVER, tag, n=n_samples).wait()

    def fetch(self) -> None:
        """Ask for the server's x. The number beside it counts the samples of all workers so far. Blocks."""
        self.transport.isend(None, SERVER, "fetch", n=self.steps)
        parameters = self.transport.recv(SERVER, "parameters")
        self.updater.samples = self.updater.processed = parameters.n
        self.over = parameters.n >= self.updater.until
        self.take(parameters)

    # Server

    def serve(self) -> None:
        """Add pushes and answer fetches with x, until the epoch has its samples and all workers fetch."""
        for message in self.workers.messages("fetch", "push", until=self.updater.until):
            if message.tag == "push":
                self.add(message)
            else:
                self.workers.steps[message.src] = message.n  # as the worker counts them, not its fetches
            if not self.updater.is_over:
                self.reply()
        self.reply()

    def add(self, push: Message) -> None:
        """x <- x + the pushed movement."""
        if push.n:
            with self.transport.recorder.phase("update"):
                self.move(push.vector)
            self.workers.record_applied(push)
            self.updater.count(push.n)
            self.workers.version_read[push.src] += 1  # as if it had read the version that it has made
        push.release()

    def move(self, movement: torch.Tensor) -> None:
        """x <- x + movement."""
        self.replica.x.add_(movement)

    def reply(self) -> None:
        """Send x to the workers that have asked for it."""
        for k in self.workers.take_waiting():
            self.workers.send_copy(self.replica.x, k, n=self.updater.samples)

    # Both

    def finish(self) -> None:
        """Push the remaining movement, and take x."""
        self.say_goodbye()
        if self.is_server:
            for push in self.workers.gather("rest"):
                self.add(push)
                self.workers.note_update()
            self.reply()
        else:
            self.push("rest")
            self.take(self.transport.recv(SERVER, "parameters"))
        self.end_epoch()
