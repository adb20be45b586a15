"""Fully sharded: each rank keeps 1/N of the parameters, gradients and optimizer state (ZeRO stage 3; FSDP).

A block's parameters are gathered before its forward pass and freed after it; gathered again before its backward pass,
and freed when its gradients are complete, which are summed as in `sharded_gradients.py`. (Zhao et al., 2023, arXiv
2304.11277.)

    forward, each block b:                        x_b <- all-gather; compute; free x_b
    backward, each block b from the model's end:  x_b <- all-gather; compute g_b; free x_b; g_chunk <- reduce-scatter
    step:                                         x_chunk <- optimizer(x_chunk, g_chunk)

To gather a block, every rank sends its chunk to all: see `early_gather.py`. So a rank sends 3 (N - 1)/N of x in a step,
half as much again as the ring; with gradients accumulated in k pieces, (1 + 2k)(N - 1)/N of x. A last block that stayed
between the passes would save (N - 1)/N of it; here it is freed, so that all blocks are alike. The rest of the model is
one more block, or two, whose passes are those of the model.

All ranks gather in one order, though the passes of some may skip a block: `gradwire/sharding/common_order.py` finds it,
and calls `gather`, `free` and `complete`. What autograd would keep of gathered parameters, it keeps as a place in the
block: `gradwire/sharding/saved_places.py`.

An activation checkpoint (torch.utils.checkpoint) needs use_reentrant=False; in virtual time it frees nothing.

Between epochs, when `finish` has ended, every rank has the whole model.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from typing_extensions import override

from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Footprint, Traffic
from gradwire.sharding.block_observer import bind, on_blocks, unbind
from gradwire.sharding.blocks import Block, check_pieces
from gradwire.sharding.common_order import CommonOrder
from gradwire.sharding.saved_places import SavedPlaces
from strategies.all_reduce.early_gather import EarlyGather
from strategies.all_reduce.sharded_gradients import ShardedGradients


@dataclass(kw_only=True)
class FullySharded(ShardedGradients):
    """Each rank keeps 1/N of x, g and the optimizer's state; a block's parameters are gathered for its two passes.

    The meter "hidden_communication", with --prefetch: of the time from the start of a gathering to its end, the share
    in which the rank computed.
    """

    shards_x: ClassVar[bool] = True  # no rank has all of x while it trains
    packed: ClassVar[bool] = True

    prefetch: bool = False
    """Begin to gather a block while the one before it computes."""

    def cost(self, kind: str | None = None) -> Cost:
        """For each of B blocks its chunk to everyone, twice, and N - 1 chunks of the gradient, one after the other."""
        sent = Traffic("3 (N - 1) B", "3 (N - 1) P / N")
        return Cost(worker=sent, path=Traffic("(N + 1) B", "3 (N - 1) P / N"))

    def memory(self, role: str) -> Footprint:
        """As with sharded gradients; a chunk of x too, and a block of it, gathered."""
        return replace(super().memory(role), parameters="P / N", gathered_parameters="P / B")

    @override
    def check(self, run: RunSize) -> None:
        check_pieces(self.name, run)

    # Each rank keeps one chunk of each block

    def setup(self) -> None:
        """Cut the model into blocks; gather and free them in its passes."""
        super().setup()
        self.is_whole = True  # the replica has all of x
        self.gathering = EarlyGather(self.transport)
        self.order = CommonOrder(self.cut, self.rest, self, self.transport.recorder)
        self.saved = SavedPlaces(self.cut, self.order, self.transport.recorder)
        on_blocks(self.replica, self.cut, self.saved)

    def optimize(self) -> None:
        """Give the optimizer this rank's chunks of x, in memory of their own."""
        with self.transport.recorder.holding("parameters"):
            self.x = self.transport.allocate(self.g.numel(), self.g.dtype)
        parts = [block.chunks[self.own] for block in self.cut]
        self.updater.optimize(self.x, parts=parts, packed=True, norm=self.norm)

    def shard(self) -> None:
        """Keep this rank's chunks of x only."""
        if self.is_whole:
            self.is_whole = False
            for block in self.cut:
                self.x[block.place].copy_(self.replica.x[block.chunks[self.own]])
                self.free(block)
            self.replica.free_x()

    # The passes of a block, in the order of all ranks

    def gather(self, block: Block) -> None:
        """Before each of its passes: x_b <- all-gather."""
        if block.vector is None:
            self.bind(block, self.gathered(block))

    def free(self, block: Block) -> None:
        """After each of its passes: forget x_b."""
        block.vector = None
        unbind(self.replica, block)

    def complete(self, block: Block) -> None:
        """After its backward pass: free x_b; g_chunk <- reduce-scatter, unless the ranks differ."""
        self.free(block)
        if self.order.is_common:
            super().complete(block)

    def begin_to_gather(self, block: Block) -> None:
        """Send this rank's chunk to all, unless it has been sent."""
        self.gathering.begin(block.name, self.x[block.place], self.order.pattern)

    def gathered(self, block: Block) -> torch.Tensor:
        """Return x_b [n], when the chunks of all ranks have come."""
        self.begin_to_gather(block)
        with self.transport.recorder.holding("gathered parameters"):
            vector = torch.empty(block.n, dtype=self.x.dtype, device=self.transport.device)
        self.gathering.end(block.name, block.cut(vector), self.x[block.place], self.order.compare)
        return vector

    def bind(self, block: Block, vector: torch.Tensor) -> None:
        """Point the block's parameters at `vector` [n]."""
        block.vector = vector
        bind(self.replica, block, vector)

    # A step

    def begin_step(self, n_samples: int) -> None:
        """See ShardedGradients; here the forward pass decides the order."""
        self.n = n_samples

    def step(self, n_samples: int) -> None:
        """x_chunk <- optimizer(x_chunk, g_chunk), for this rank's chunk of each block."""
        self.shard()
        self.order.end_backward()
        self.reduce_rest(n_samples)
        self.gathering.wait()
        self.updater.step(self.g, self.total)

    # Between epochs

    def model(self) -> torch.Tensor:
        """Return x [n]: in the middle of an epoch, gathered into memory of its own."""
        if self.is_whole:
            return self.replica.x
        with self.transport.recorder.holding("parameters"):
            x = torch.empty(self.replica.layout.n, dtype=self.x.dtype, device=self.transport.device)
        for block in self.cut:
            x[block.part] = self.gathered(block)
        return x

    def finish(self) -> None:
        """Give every rank the whole model; average the buffers."""
        if self.prefetch:
            self.gathering.hidden.end_epoch()
        if not self.is_whole:
            with self.transport.recorder.evaluating():
                x = self.model()
            for block in self.cut:
                bind(self.replica, block, x[block.part])
            self.replica.point_at(x)
            self.is_whole = True
        super().finish()

    def state_dict(self) -> dict[str, Any]:
        """See Strategy; all ranks call it, to gather x."""
        x, state = self.model(), super().state_dict()
        return state | {"x": x} if "x" in state else state
