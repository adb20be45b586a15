"""Sharded gradients: each rank keeps 1/N of the gradient and of the optimizer's state (ZeRO stage 2).

As soon as the backward pass has the gradients of a block of the model, a ring reduce-scatters them; each rank keeps the
mean of its chunk and frees the others. (Rajbhandari et al., 2020, arXiv 1910.02054.)

Rank r owns chunk (r + 1) mod N of each block. At the end it updates its chunks of x, and these travel to all: the bytes
are those of the ring.

All ranks reduce the blocks in one order, from the model's end: a block waits for those behind it. Where the optimizer
sees tensors, such as muon, chunks are cut between these.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gradwire.core.records.errors import RunFailed
from gradwire.core.records.options import MAY_CHANGE_ALWAYS
from gradwire.core.strategy.traits import Cost, Footprint, Traffic
from gradwire.core.transports.base import Work
from gradwire.sharding.block_observer import pop_gradients
from gradwire.sharding.blocks import Block, cut
from gradwire.sharding.resharding import gather_states, state_of
from strategies.all_reduce.sharded_ring import ShardedRing
from strategies.collectives import all_gather, reduce_scatter


@dataclass(kw_only=True)
class ShardedGradients(ShardedRing):
    """The sharded ring, with 1/N of the gradient too: a block's gradients are summed when complete, then freed."""

    reshards: ClassVar[bool] = True  # a run with another number of ranks can continue from its checkpoints
    packed: ClassVar[bool] = False  # whether this rank's chunks of x lie in one vector of their own

    block_modules: str = ""
    """The modules that are blocks, by name, with commas. Default: the children of the longest ModuleList or
    Sequential."""
    gather_checkpoints: bool = field(default=False, metadata=MAY_CHANGE_ALWAYS)
    """Write checkpoints of one file, with the optimizer's state of all ranks; else each rank writes its shards."""

    def cost(self, kind: str | None = None) -> Cost:
        """For each of B blocks N - 1 chunks of the gradient, then N - 1 of x."""
        ring = Traffic("2 (N - 1) B", "2 (N - 1) P / N")
        return Cost(worker=ring, path=ring)

    def memory(self, role: str) -> Footprint:
        """A chunk of g and of the state; the gradients of a block, and their copy."""
        return Footprint(gradients="P / N + P / B", optimizer_state="S / N", buckets="P / B")

    def setup(self) -> None:
        """Cut x and g into blocks, and these into chunks; run the optimizer on this rank's chunks only."""
        N, replica, start = self.transport.world_size, self.replica, 0
        self.own = (self.transport.rank + 1) % N
        self.cut, replica.collects = cut(replica, self.block_modules), False
        for block in self.cut:
            block.chunks = self.updater.parts(N, block.part)
            own = block.chunks[self.own]
            block.place = slice(start, start := start + own.stop - own.start)
        with self.transport.recorder.holding("gradients"):
            self.g = self.transport.allocate(start, replica.x.dtype)  # of all its chunks, one after the other
        with self.transport.recorder.holding("buckets"):
            self.bucket = self.transport.allocate(max(block.n for block in self.cut), replica.x.dtype)
        self.sent: list[Work] = []  # until they are done, the bucket must not change
        self.square = self.transport.allocate(1, replica.x.dtype)
        self.n: int | None = None  # samples of this rank in the step, once they are known
        self.rest = [block for block in self.cut if block.module is replica.model]
        self.block_of = {i: block for block in self.cut for i in block.tensors}
        self.begin_pass()
        replica.on_gradient(self.take_gradient)
        self.optimize()

    def optimize(self) -> None:
        """Give the optimizer this rank's chunks of x."""
        self.updater.optimize(self.replica.x, parts=[block.chunks[self.own] for block in self.cut], norm=self.norm)

    def reduce(self, block: Block, n: int) -> None:
        """g of this rank's chunk of the block <- sum of n_k g_k / sum of n_k, over all ranks k; forget the others."""
        for work in self.sent:
            work.wait()
        bucket = self.bucket[: block.n]
        pop_gradients(self.replica, block, bucket)
        chunks = block.cut(bucket.mul_(n))
        self.total, self.sent = reduce_scatter(chunks, self.transport, n)
        self.g[block.place].copy_(chunks[self.own].div_(self.total))

    def step(self, n_samples: int) -> None:
        """x_chunk <- optimizer(x_chunk, g_chunk), for this rank's chunk of each block; x <- the chunks of all."""
        self.reduce_rest(n_samples)
        self.updater.step(self.g, self.total)
        x = self.replica.x
        sent = [work for block in self.cut for work in all_gather(block.cut(x[block.part]), self.transport)]
        for work in sent:
            work.wait()

    # When a block is reduced: all ranks do so in one order, in the backward pass

    def begin_pass(self, order: Iterable[Block] | None = None) -> None:
        """Forget which gradients are complete; reduce blocks in this order, by default from the end, the rest last."""
        order = reversed(self.cut) if order is None else order
        self.pending = [block for block in order if block not in self.rest] + self.rest
        for block in self.cut:
            block.missing = set(block.tensors)

    def begin_step(self, n_samples: int) -> None:
        """From now on reduce each block as soon as its gradients are complete."""
        self.n = n_samples
        self.begin_pass()

    def take_gradient(self, i: int) -> None:
        """Note, during the backward pass, that the gradient of parameter `i` is complete."""
        block = self.block_of[i]
        if self.n is not None and block not in self.pending:
            name = self.replica.layout.names[i]
            raise RunFailed(f"a gradient of {name} came after its block was summed; make one backward pass a step")
        block.missing.discard(i)
        if not block.missing:
            self.complete(block)

    def complete(self, block: Block) -> None:
        """Reduce a block whose gradients are complete, and those that waited for it; first those it waits for."""
        while self.n is not None and self.pending and not self.pending[0].missing:
            self.reduce(self.pending.pop(0), self.n)

    def reduce_rest(self, n: int) -> None:
        """Reduce the blocks that the backward pass has left; a missing gradient counts as zero."""
        self.replica.end_pass()
        for block in self.pending:
            self.reduce(block, n)
        self.n = None
        self.begin_pass()
        self.replica.collected = True

    # Checkpoints

    @property
    def gathers(self) -> bool:
        """Whether rank 0 writes a checkpoint of all ranks."""
        return self.gather_checkpoints and self.transport.world_size > 1

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; where it `gathers`, rank 0's has that of all, the others have no x or optimizer."""
        state = super().state_dict()
        return gather_states(state, self.transport, self.cut, self.updater, self.packed) if self.gathers else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of this rank, or from those of all "ranks" of a run, gathered or of another number."""
        if "ranks" in state:
            state = state_of(self.transport.rank, state["ranks"], self.cut, self.updater, self.own, self.packed)
        super().load_state_dict(state)
