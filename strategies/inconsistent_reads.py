"""Asynchronous parameter server whose workers read x in shared memory, while it may be written.

No copy of x is sent: the server updates x in place, and a worker that may go on reads it there, without a lock. What it
has read may then mix several versions, some elements before and some after an update (AsySG-incon; Lian et al., 2015,
arXiv 1506.08272). On record are the versions at the read's start (all updates that had ended) and at its end (all that
had begun): if they are equal, the read was whole. The staleness of a gradient counts from the start of its read.
"""

from typing import Any

import torch

from records.events import clock
from strategies.async_param_server import AsyncParamServer
from strategies.param_server import SERVER
from transports.base import Message

BEGUN, ENDED = 0, 1  # of the updates; then comes the version that rank 1 has read, and so on


class InconsistentReadsServer(AsyncParamServer):
    """AsyncParamServer with one x that all share."""

    def prepare(self) -> None:
        """Also have x, and the versions, where everybody can see them."""
        super().prepare()
        transport, x = self.transport, self.replica.x
        everybody = range(transport.world_size)
        self.x = transport.shared_vector("x", x.numel(), x.dtype, everybody)
        self.versions = transport.shared_vector("versions", transport.world_size + 1, torch.int64, everybody)
        if transport.rank == SERVER:
            self.replica.move_to(self.x)
            self.parameter = torch.nn.Parameter(self.x)
            self.parameter.grad = self.replica.g
            self.make_optimizer([self.parameter])

    def welcome(self, k: int) -> None:
        """Server: k begins with x as it is."""
        super().welcome(k)
        self.versions[k + 1] = self.version

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Server: the versions count on."""
        super().load_state_dict(state)
        self.versions[BEGUN] = self.versions[ENDED] = self.version

    def _pull(self) -> None:
        """Worker: x_k <- x as it is in this very moment, unless the epoch is over."""
        self.over = self.transport.recv(SERVER, "parameters").object is None
        if self.over:
            return
        t0, start = clock(), int(self.versions[ENDED])
        self.replica.x.copy_(self.x)
        end, nbytes = int(self.versions[BEGUN]), self.x.nbytes
        self.transport.recorder.add("communicate", t0, clock(), "read", SERVER, "x", nbytes, start, end)
        self.versions[self.transport.rank + 1] = start
        self.push.wait()
        self.replica.zero_grad()

    def _take(self, push: Message) -> None:
        """Server: the version that counts is that of the read which the gradient was computed on."""
        self.read[push.src] = int(self.versions[push.src + 1])
        super()._take(push)

    def _apply(self) -> None:
        """Server: x is being written between the two counts."""
        self.versions[BEGUN] += 1
        super()._apply()
        self.versions[ENDED] += 1

    def _send_x(self, k: int) -> None:
        """Server: say that k may read."""
        self.send("read", k, "parameters")
