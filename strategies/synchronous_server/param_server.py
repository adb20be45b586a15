"""Synchronous parameter server: S servers keep the parameters, N - S workers compute on one shard each.

x is cut into S slices of elements, whose lengths differ by at most one, and server i, which is rank i, owns slice x^i.
In every step each worker k sends (n_k, g_k^i), the slice of its mean gradient over n_k samples, to every server i; the
server forms g^i = sum n_k g_k^i / sum n_k, takes one optimizer step x^i <- optimizer(x^i, g^i), and sends x^i to all
workers. S = 1 is the plain parameter server, where g_k and x are not cut. (Li et al., 2014, Scaling distributed machine
learning with the parameter server, OSDI. There workers may also run ahead of each other, and every slice has copies on
other servers; here all keep step, and the loss of a server ends the run.)

A worker sends and receives one vector of P bytes a step, whatever S; a server (N - S) / S of each. N P / S bytes of a
step pass one after the other: N - S slices into a server, and S slices into a worker. That is the wall, and S moves it.

`--clip_norm` is for the norm of the whole gradient: the servers send each other one number, the square of their slice's
norm. With a codec, for one server only, g_k is sent as its code, and the server takes what it decodes for g_k; x is
sent as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compression import KINDS
from records.errors import UsageError, between
from strategies.collectives import broadcast, gather_and_add
from strategies.common.base import RunSize
from strategies.common.served import Served
from strategies.common.traits import Traffic
from strategies.common.workers import GRADIENT, SERVER


@dataclass(kw_only=True)
class ParamServer(Served):
    """Workers send gradients to one server, which takes one step with their mean and sends the parameters to all."""

    servers: int = 1
    """S: the servers that x is cut over. They are of the --n_gpus processes."""

    traffic = {"worker": Traffic("servers", "P"), "server": Traffic("N - servers", "(N - servers) P / servers")}
    critical_path = Traffic("2", "N P / servers")
    coded_path = dict.fromkeys(KINDS, Traffic("2", "(N - 1) P + C"))

    def __post_init__(self) -> None:
        self.cuts_x = self.servers > 1

    def roles(self, world_size: int) -> list[str]:
        """Ranks 0 to S - 1 serve, the others work. At least one does either, also for an S that `check` refuses."""
        S = max(1, min(self.servers, world_size - 1))
        return ["server"] * S + ["worker"] * (world_size - S)

    def check(self, run: RunSize) -> None:
        """Somebody must work; a code is of a whole gradient."""
        between(self, "servers", 1, run.n_ranks - 1, "all processes but one")
        if self.servers > 1 and run.coded:
            raise UsageError(f"--servers {self.servers}: no codec codes slices of a gradient; leave out --codec")

    def setup(self) -> None:
        """Server i: run the optimizer on x^i only, and form g^i."""
        super().setup()
        self.of_servers = range(self.servers)
        if self.servers > 1 and self.is_server:
            i = self.transport.rank
            self.g = self.cut(self.replica.g)[i]
            self.descent.optimize(self.cut(self.replica.x)[i])
            self.norm = self.norm_of_all
            self.square = self.transport.allocate(1, torch.float64)

    def cut(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the slices of a vector [n], by server."""
        return torch.tensor_split(vector, self.servers)

    # Worker

    def step(self, n_samples: int) -> None:
        """Send (n_k, g_k); x_k <- the servers' new x. That of one is read where it is, until the next step."""
        if self.servers > 1:
            self.exchange_slices(n_samples)
        else:
            gradient = self.send_gradient(n_samples)
            self.replica.adopt(self.transport.recv(SERVER, "parameters"))
            gradient.wait()
        self.replica.zero_grad()

    def exchange_slices(self, n_samples: int) -> None:
        """For all i, send (n_k, g_k^i) to server i; x_k^i <- its x^i."""
        g, x = self.cut(self.replica.collect()), self.cut(self.replica.x)
        sent = [self.transport.isend(g[i], i, GRADIENT, n=n_samples) for i in self.of_servers]
        for i in self.of_servers:
            self.transport.recv(i, "parameters").copy_to(x[i])
        for work in sent:
            work.wait()

    # Server

    def serve(self) -> None:
        """One step after the other with a gradient of each worker, until all have said goodbye."""
        x = self.replica.x if self.servers == 1 else self.cut(self.replica.x)[self.transport.rank]
        for gradients in self.workers.rounds():
            self.apply(gradients)
            self.workers.send_in_place(x)

    def norm_of_all(self, g: torch.Tensor) -> torch.Tensor:
        """Return the norm of the whole gradient, g being this server's slice of it."""
        self.square[0] = torch.linalg.vector_norm(g, dtype=torch.float64).square()
        gather_and_add(self.square, self.transport, ranks=self.of_servers)
        return self.square[0].sqrt().to(g.dtype)

    # Both

    def say_goodbye(self) -> None:
        """Worker: to every server."""
        super().say_goodbye()
        if not self.is_server:
            for i in self.of_servers[1:]:
                self.transport.isend(None, i, "goodbye")

    def end_epoch(self) -> None:
        """Server 0 averages the buffers, as a single one does, and tells the other servers."""
        self.share_slices()
        if self.transport.rank not in self.of_servers[1:]:
            super().end_epoch()
        if self.is_server and self.servers > 1:
            broadcast(self.replica.b, self.transport, "mean buffers", ranks=self.of_servers)
            if (counts := self.replica.counts).numel():
                broadcast(counts, self.transport, "counts", ranks=self.of_servers)
                self.replica.counts = counts

    def model(self) -> torch.Tensor:
        """Return x [n], which no server has before the others have given it theirs."""
        self.share_slices()
        return self.replica.x

    def share_slices(self) -> None:
        """Server: x <- the slices of all servers."""
        if self.is_server:
            for i, x_i in enumerate(self.cut(self.replica.x)):
                broadcast(x_i, self.transport, "slice", root=i, ranks=self.of_servers)
