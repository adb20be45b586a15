"""Fully sharded: each rank keeps 1/N of the parameters, gradients and optimizer state (ZeRO stage 3; FSDP).

A block's parameters are gathered before its forward pass and freed after it; gathered again before its backward pass,
and freed when its gradients are complete, which are summed as in `sharded_gradients.py`. (Zhao et al., 2023, arXiv
2304.11277.)

To gather a block, every rank sends its chunk to all. So a rank sends 3 (N - 1)/N of x in a step, half as much again as
the ring. The rest of the model is one more block, or two, whose passes are those of the model.

What autograd would keep of gathered parameters, it keeps as a place in the block. All ranks gather in one order: that
of the model, and from the second step on that in which all have used the blocks in the pass before. A block that a pass
skips is gathered too. Ranks that use different blocks see it by the number beside the first chunks of the backward
pass: then the order stays, and gradients are summed after the pass. With gradients accumulated in k pieces a rank sends
(1 + 2k)(N - 1)/N of x. A last block that stayed between the passes would save (N - 1)/N; here all blocks are alike.

An activation checkpoint (torch.utils.checkpoint) needs use_reentrant=False; in virtual time it frees nothing. Between
epochs, when `finish` has ended, every rank has the whole model.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.autograd.graph import saved_tensors_hooks

from gradwire.core.strategy.blocks import Block
from gradwire.core.strategy.passes import OnBlocks
from gradwire.core.strategy.traits import Cost, Footprint, Traffic
from gradwire.core.transports.base import Work
from strategies.all_reduce.sharded_gradients import ShardedGradients


@dataclass(kw_only=True)
class FullySharded(ShardedGradients, OnBlocks):
    """Each rank keeps 1/N of x, g and the optimizer's state; a block's parameters are gathered for its two passes.

    The meter "hidden_communication", with --prefetch: of the time from the start of a gathering to its end, the share
    in which the rank computed.
    """

    traits = replace(ShardedGradients.traits, has_x=False)
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

    def setup(self) -> None:
        """Allocate this rank's chunks of x; gather and free in the passes."""
        super().setup()
        self.is_whole = True  # the replica has all of x
        self.order = list(self.cut)  # of the forward pass
        self.turns: list[Block] = []  # still to be gathered in this pass, in this order
        self.used: list[Block] = []  # by this forward pass, in this order
        self.skipped: list[Block] = []  # the others, once it has ended
        self.pattern = 0  # a check sum of those that it has used
        self.is_common = True  # whether it came from all ranks with the chunks that were gathered last
        self.is_open = False  # whether that of this pass is still to be compared
        self.saving: saved_tensors_hooks | None = None
        self.lent: list[Work] = []  # after which x may be changed
        self.begun: dict[Block, float] = {}  # when the gathering of a block under way began
        self.on_the_way_s = self.hidden_s = 0.0  # of an epoch
        self.replica.on_blocks(self.cut, self)

    def optimize(self) -> None:
        """Give the optimizer this rank's chunks of x, in memory of their own."""
        with self.transport.recorder.holding("parameters"):
            self.x = self.transport.allocate(self.g.numel(), self.g.dtype)
        parts = [block.chunks[self.own] for block in self.cut]
        self.descent.optimize(self.x, parts=parts, packed=True, norm=self.norm)

    # The chunks of x, and the whole

    def shard(self) -> None:
        """Keep this rank's chunks of x only."""
        if self.is_whole:
            self.is_whole = False
            for block in self.cut:
                self.x[block.place].copy_(self.replica.x[block.chunks[self.own]])
                self.free(block)
            self.replica.free_x()

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
        if self.prefetch and self.on_the_way_s and self.transport.world_size > 1:
            self.transport.recorder.meters["hidden_communication"] = self.hidden_s / self.on_the_way_s
        self.on_the_way_s = self.hidden_s = 0.0
        if not self.is_whole:
            with self.transport.recorder.evaluating():
                self.replica.point_at(self.model())
            self.is_whole = True
        super().finish()

    # Gathering a block

    def begin_to_gather(self, block: Block) -> None:
        """Send this rank's chunk to all, beginning with the right neighbour."""
        N, r, chunk = self.transport.world_size, self.transport.rank, self.x[block.place]
        self.begun[block] = self.transport.now()
        for i in range(1, N):
            self.lent.append(self.transport.isend(chunk, (r + i) % N, f"gather {block.name}", n=self.pattern))

    def gathered(self, block: Block) -> torch.Tensor:
        """Return the block's parameters [n], when all chunks have come."""
        transport = self.transport
        if block not in self.begun:
            self.begin_to_gather(block)
        waits = transport.now()
        with transport.recorder.holding("gathered parameters"):
            vector = torch.empty(block.n, dtype=self.x.dtype, device=transport.device)
        chunks = block.cut(vector)
        chunks[self.own].copy_(self.x[block.place])
        self.is_common = True
        for k in transport.peers:
            message = transport.recv(k, f"gather {block.name}")
            self.is_common &= message.n == self.pattern
            message.copy_to(chunks[(k + 1) % transport.world_size])
        begun = self.begun.pop(block)
        self.hidden_s += waits - begun
        self.on_the_way_s += transport.now() - begun
        return vector

    def free(self, block: Block) -> None:
        """Forget the block's parameters."""
        block.vector = None
        self.replica.free(block)

    def gather(self, block: Block) -> None:
        """Give the parameters of the block memory, with the elements of all ranks."""
        if block.vector is None:
            block.vector = self.gathered(block)
            self.replica.give(block, block.vector)
            if self.is_open:
                self.plan_backward(block)
        if self.prefetch and self.turns and self.turns[0] not in self.begun:
            self.begin_to_gather(self.turns[0])

    def gather_next(self) -> Block:
        """Gather the block whose turn it is, which all ranks do, and return it."""
        block = self.turns.pop(0)
        block.vector = None
        self.gather(block)
        return block

    def wait_turn(self, block: Block) -> None:
        """Gather the block, and before it those whose turn is before it: all ranks do, though some do not use them."""
        while self.is_open or block in self.turns:
            if (first := self.gather_next()) is block:
                break
            self.skip(first)
        self.gather(block)

    # The passes

    def begin_step(self, n_samples: int) -> None:
        """See ShardedGradients; here the forward pass decides the order."""
        self.n = n_samples

    def begin_forward(self) -> None:
        """Prepare for a forward pass of the model."""
        self.shard()
        self.end_backward()
        self.turns, self.used, self.skipped = list(self.order), [], []
        self.start_saving()

    def enter(self, block: Block) -> None:
        """Gather a block for its forward pass; in the backward pass, a checkpoint computes it once more."""
        if not self.saving:
            self.enter_backward(block)
            return
        with self.not_saving():
            self.wait_turn(block)
        self.used.append(block)

    @contextmanager
    def not_saving(self) -> Iterator[None]:
        """In virtual time, where other ranks of this thread may have their turns: leave to each what autograd keeps."""
        if self.transport.recorder.time_passes:
            self.stop_saving()
            yield
            self.start_saving()
        else:
            yield

    def start_saving(self) -> None:
        """Have autograd keep what `save` returns."""
        self.saving = saved_tensors_hooks(self.save, lambda saved: saved() if callable(saved) else saved)
        self.saving.__enter__()

    def stop_saving(self) -> None:
        """Have autograd keep tensors as they are."""
        if self.saving:
            self.saving.__exit__()
        self.saving = None

    def leave(self, block: Block) -> None:
        """Free a block after its forward pass."""
        with self.not_saving():
            self.replica.spend_forward(block)
        self.free(block)

    def end_forward(self) -> None:
        """Gather the blocks that are left, and let the backward pass begin with the last that all have gathered."""
        self.stop_saving()
        while self.turns:
            self.gather_next()
        self.pattern, self.is_open = zlib.crc32(repr([self.cut.index(block) for block in self.used]).encode()), True
        self.skipped = [block for block in self.cut if block not in self.used]
        for block in self.skipped:
            self.free(block)
        self.begin_pass(self.order)
        self.turns = self.rest[:1] or self.order[-1:]

    def plan_backward(self, first: Block) -> None:
        """Order the backward pass, whose `first` block has come: by the forward pass, if all ranks had the same."""
        self.is_open, self.order = False, self.used + self.skipped if self.is_common else self.order
        blocks = [block for block in dict.fromkeys(reversed(self.order)) if block not in self.rest]
        self.pending = blocks + self.rest
        self.turns = [block for block in self.rest + blocks if block is not first]

    def enter_backward(self, block: Block) -> None:
        """Gather a block for its backward pass."""
        self.wait_turn(block)

    def skip(self, block: Block) -> None:
        """In the backward pass: reduce a block that the forward pass has not used, for no gradient of it will come."""
        if block in self.skipped:
            block.missing.clear()
            self.complete(block)

    def complete(self, block: Block) -> None:
        """Free the block; then see ShardedGradients, where all ranks are to reduce in the pass."""
        self.free(block)
        if self.is_common and not self.is_open:
            super().complete(block)

    def end_backward(self) -> None:
        """Gather the blocks that are left, which other ranks may have used, and free all."""
        while self.turns:
            self.gather_next()
        for block in self.cut:
            self.free(block)

    def save(self, tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
        """Return what autograd is to keep for the backward pass: of gathered memory, how to find it again."""
        address = tensor.untyped_storage().data_ptr()
        for block in self.cut:
            if block.vector is not None and block.vector.untyped_storage().data_ptr() == address:
                place = tensor.size(), tensor.stride(), tensor.storage_offset()
                return lambda: self.found(block, *place)
        return tensor

    def found(self, block: Block, *place: Any) -> torch.Tensor:
        """Return a tensor that was saved, in the memory that its block has now."""
        self.enter_backward(block)
        assert block.vector is not None
        return block.vector.as_strided(*place)

    # The step

    def step(self, n_samples: int) -> None:
        """x_chunk <- optimizer(x_chunk, g_chunk), for this rank's chunk of each block."""
        self.shard()
        self.end_backward()
        self.reduce_rest(n_samples)
        for work in self.lent:
            work.wait()
        self.lent.clear()
        self.descent.step(self.g, self.total)

    def state_dict(self) -> dict[str, Any]:
        """See Strategy; all ranks call it, to gather x."""
        x, state = self.model(), super().state_dict()
        return state | {"x": x} if "x" in state else state
