"""Sharded ring: a ring all-reduce whose optimizer runs between its halves, each rank updating only the chunk it owns.

After share-reduce (reduce-scatter) rank r holds the mean gradient of chunk (r + 1) mod N. It updates that chunk of x,
and so keeps 1/N of the optimizer's state. In share-only (all-gather) the chunks of x travel: the same bytes. (ZeRO
stage 1; Rajbhandari et al., 2020, arXiv 1910.02054.)

With `--clip_norm` one number more goes round the ring, in 2 (N - 1) messages.

Where the optimizer sees tensors, such as muon, the chunks are cut between these, as near to alike as they can be.
"""

from dataclasses import dataclass

import torch

from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Cost, Footprint, Traffic
from strategies.collectives import all_gather, average, reduce_scatter, ring_all_reduce


@dataclass(kw_only=True)
class ShardedRing(Strategy):
    """The ring, with 1/N of the optimizer's state on each rank: it updates one chunk of x, and the chunks travel."""

    def cost(self, kind: str | None = None) -> Cost:
        """N - 1 chunks of the gradient, then N - 1 of x, one after the other."""
        ring = Traffic("2 (N - 1)", "2 (N - 1) P / N")
        return Cost(worker=ring, path=ring)

    def memory(self, role: str) -> Footprint:
        """The state of one chunk."""
        return Footprint(optimizer_state="S / N")

    def setup(self) -> None:
        """Run the optimizer on this rank's chunk of x only."""
        N, replica = self.transport.world_size, self.replica
        parts = self.updater.parts(N)
        self.own = (self.transport.rank + 1) % N
        self.g_chunks, self.x_chunks = ([vector[part] for part in parts] for vector in (replica.g, replica.x))
        self.updater.optimize(replica.x, parts=[parts[self.own]], norm=self.norm)
        self.square = self.transport.allocate(1, self.replica.x.dtype)

    def step(self, n_samples: int) -> None:
        """g_chunk <- sum of n_k g_k / sum of n_k; x_chunk <- optimizer(x_chunk, g_chunk); x <- the chunks of all."""
        self.replica.collect().mul_(n_samples)
        n, sent = reduce_scatter(self.g_chunks, self.transport, n_samples)
        self.updater.step(self.g_chunks[self.own].div_(n), n)
        sent += all_gather(self.x_chunks, self.transport)
        for work in sent:
            work.wait()
        self.replica.zero_grad()

    def norm(self, g_chunk: torch.Tensor) -> torch.Tensor:
        """Return the norm of the whole gradient, which the bound `--clip_norm` is for: an all-reduce of one number."""
        self.square[0] = g_chunk.square().sum()
        ring_all_reduce(self.square, self.transport)
        return self.square[0].sqrt()

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        average(self.replica.b, self.transport)
