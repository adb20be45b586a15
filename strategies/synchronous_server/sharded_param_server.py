"""Sharded parameter server: S servers keep a slice of the parameters each, N - S workers compute on one shard each.

x is cut into S slices, whose lengths differ by at most one (where the optimizer sees tensors: between these), and
server i, which is rank i, owns slice x^i. In every step each worker k sends (n_k, g_k^i) to every server i, which takes
the step of `param_server` on its slice, and sends x^i to all workers. (Li et al., OSDI 2014, as there.)

In the paper workers may also run ahead of each other, and every slice has copies on other servers. Here all keep step,
and the loss of a server ends the run.

A worker sends and receives one vector of P bytes a step, whatever S; a server (N - S) / S of each. N - S slices pass a
server's card into it, and then as many out of it; S slices pass a worker's. That is the wall, and S moves it.

`--clip_norm` is for the norm of the whole gradient: the servers send each other one number, the square of their slice's
norm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gradwire.core.records.errors import between
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Traits
from gradwire.core.strategy.workers import GRADIENT, SERVER
from strategies.collectives import broadcast, gather_and_add


@dataclass(kw_only=True)
class ShardedParamServer(Served):
    """The synchronous server, cut over several ranks: each keeps a slice of x and takes that slice of all gradients."""

    servers: int = 2
    """S: the servers that x is cut over. They are of the --n_gpus processes."""

    traits = Traits(ranks=(3, None), server_updates=True)  # no codecs: a code is of a whole gradient

    def cost(self, kind: str | None = None) -> Cost:
        """Slices of a gradient from each worker, and of x to each."""
        return Cost(
            worker=Traffic("servers", "P"),
            server=Traffic("N - servers", "(N - servers) P / servers"),
            path=Traffic("2", "2 max(N - servers, servers) P / servers"),
            in_order=Traffic("2", "N P / servers"),
        )

    def memory(self, role: str) -> Footprint:
        """A server keeps the state of its slice."""
        return replace(super().memory(role), optimizer_state="S / servers" if role == "server" else "0")

    def roles(self, world_size: int) -> list[str]:
        """Ranks 0 to S - 1 serve, the others work. At least one does either, also for an S that `check` refuses."""
        S = max(1, min(self.servers, world_size - 1))
        return ["server"] * S + ["worker"] * (world_size - S)

    def check(self, run: RunSize) -> None:
        """Some ranks must work."""
        between(self, "servers", 2, run.n_ranks - 1, "all processes but one")

    def setup(self) -> None:
        """Server i: run the optimizer on x^i only."""
        super().setup()
        self.of_servers = range(self.servers)
        self.parts = self.updater.parts(self.servers)
        if self.is_server:
            self.own_x = self.cut(self.replica.x)[self.transport.rank]
            self.updater.optimize(self.replica.x, parts=[self.parts[self.transport.rank]], norm=self.norm)
            self.square = self.transport.allocate(1, torch.float64)

    def cut(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the slices of a vector [n], by server."""
        return [vector[part] for part in self.parts]

    # Worker k

    def step(self, n_samples: int) -> None:
        """For all i, send (n_k, g_k^i) to server i; x_k^i <- its x^i."""
        g, x = self.cut(self.replica.collect()), self.cut(self.replica.x)
        sent = [self.transport.isend(g[i], i, GRADIENT, n=n_samples) for i in self.of_servers]
        for i in self.of_servers:
            self.transport.recv(i, "parameters").copy_to(x[i])
        for work in sent:
            work.wait()
        self.replica.zero_grad()

    def say_goodbye(self) -> None:
        """Say goodbye to every server."""
        super().say_goodbye()
        if not self.is_server:
            for i in self.of_servers[1:]:
                self.transport.isend(None, i, "goodbye")

    # Server i

    def serve(self) -> None:
        """Take one step after the other with a slice of each worker, until all have said goodbye."""
        for slices in self.workers.rounds():
            self.apply(slices)  # x^i <- optimizer(x^i, sum n_k g_k^i / sum n_k)
            self.workers.send_in_place(self.own_x)

    def norm(self, g: torch.Tensor) -> torch.Tensor:
        """Return the norm of the whole gradient, g being this server's slice of it."""
        self.square[0] = torch.linalg.vector_norm(g, dtype=torch.float64).square()
        gather_and_add(self.square, self.transport, ranks=self.of_servers)
        return self.square[0].sqrt().to(g.dtype)

    def share_slices(self) -> None:
        """x <- the slices of all servers."""
        for i, x_i in enumerate(self.cut(self.replica.x)):
            broadcast(x_i, self.transport, "slice", root=i, ranks=self.of_servers)

    # Both

    def end_epoch(self) -> None:
        """Server 0 averages the buffers, as a single one does, and sends them to the other servers."""
        if not self.is_server:
            super().end_epoch()
            return
        self.share_slices()
        if self.transport.rank == SERVER:
            super().end_epoch()
        broadcast(self.replica.b, self.transport, "mean buffers", ranks=self.of_servers)
        if (counts := self.replica.counts).numel():
            broadcast(counts, self.transport, "counts", ranks=self.of_servers)
            self.replica.counts = counts

    def model(self) -> torch.Tensor:
        """Return x [n]; the servers first exchange their slices."""
        if self.is_server:
            self.share_slices()
        return self.replica.x
