"""Asynchronous parameter server whose workers read x in shared memory, while it may be written.

No copy of x is sent: the server updates x in place, and a worker that may continue reads it there, without a lock. So a
read may have some elements from before and some from after an update (AsySG-incon; Lian et al., 2015, arXiv
1506.08272).

Two counts beside x show it: the updates that have begun, and those that have ended. If the second was v at the start of
a read and the first v at its end, the read was of one version. The staleness of a gradient counts from the start of
its read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Message
from strategies.asynchronous_server.async_param_server import AsyncParamServer


@dataclass(kw_only=True)
class InconsistentReads(AsyncParamServer):
    """The asynchronous server, whose workers read x in its memory, without a lock, while it may be written."""

    def cost(self, kind: str | None = None) -> Cost:
        """A worker gets a message, then reads x in the server's memory."""
        return Cost(worker=Traffic("1", "G"), server=Traffic("2 (N - 1)", "(N - 1) P"))

    def check(self, run: RunSize) -> None:
        """Ranks must share memory; no order of messages decides what they read there."""
        super().check(run)
        run.check_shared_memory(self.name)

    def setup(self) -> None:
        """Share x, the counts of updates, and the versions that workers read, between all ranks."""
        super().setup()
        transport, everybody = self.transport, range(self.transport.world_size)
        self.x = transport.shared_vector("x", self.replica.x.numel(), self.replica.x.dtype, everybody)
        self.begun = transport.shared_vector("begun", 1, torch.int64, everybody)
        self.ended = transport.shared_vector("ended", 1, torch.int64, everybody)
        self.versions = transport.shared_vector("versions read", transport.world_size, torch.int64, everybody)
        if self.is_server:
            self.x.copy_(self.replica.x)
            self.replica.point_at(self.x)
            self.updater.optimize(self.x)
            self.workers.version_read = self.versions

    def join(self, resumed: bool) -> None:
        """Server: the counts continue too."""
        if self.is_server:
            self.begun.fill_(self.updater.version)
            self.ended.fill_(self.updater.version)
        super().join(resumed)

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (g_k, n_k); when the server says so, x_k <- x as it is in this very moment."""
        gradient = self.send_gradient(n_samples)
        self.over = self.transport.recv(SERVER, "read").n >= self.updater.until
        version = self.transport.read(self.x, self.replica.x, SERVER, self.begun, self.ended)
        self.versions[self.transport.rank] = version
        gradient.wait()
        self.replica.zero_grad()
        self.steps += 1

    # Server

    def send_x(self, k: int) -> None:
        """Tell worker k that it may read."""
        self.workers.send(None, k, "read", n=self.updater.samples)

    def apply(self, gradients: Iterable[Message], processed: float = 1.0) -> None:
        """Update x in place between the two counts; before it is written the mean is formed, so a read may be whole."""
        self.begun += 1
        super().apply(gradients, processed)
        self.ended += 1
