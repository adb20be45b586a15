"""In which order all ranks gather the blocks of a model, though the passes of some may skip a block."""

import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from typing_extensions import override

from gradwire.core.records.recorder import Recorder
from gradwire.sharding.block_observer import BlockObserver, spend_forward
from gradwire.sharding.blocks import Block


class Gathering(Protocol):
    """What one rank does with its blocks, in the order of all."""

    pending: list[Block]
    """The blocks whose gradients are still to be summed, in the order of all ranks."""
    prefetch: bool
    """Whether to begin to gather a block while the one before it computes."""

    def shard(self) -> None:
        """Keep its chunks of the parameters only, before a forward pass of the model."""

    def begin_pass(self, order: Sequence[Block]) -> None:
        """Prepare for a backward pass, in which blocks are summed in this order, unless `pending` changes."""

    def begin_to_gather(self, block: Block) -> None:
        """Send what the others need to gather the block, unless it has been sent."""

    def gather(self, block: Block) -> None:
        """Give the block its parameters, unless it has them."""

    def free(self, block: Block) -> None:
        """Forget the block's parameters."""

    def complete(self, block: Block) -> None:
        """End the backward pass of a block."""


class CommonOrder(BlockObserver):
    """Has a rank gather a block before each of its passes, and free it after the first, in the order of all ranks.

    A forward pass follows the order in which all ranks have used the blocks in a pass before; the first, that of the
    model. A block that this rank skips is gathered in its turn. Then `pattern` is 0 if this rank has used all blocks in
    that order, else a check sum of those that it has used. The backward pass begins with one block, beside whose chunks
    the ranks send their patterns. If all are the same, the pass takes the new order. Else it keeps the old, and all
    gradients are summed after the pass.
    """

    def __init__(self, blocks: Sequence[Block], outside: Sequence[Block], gathering: Gathering, rec: Recorder) -> None:
        self.pattern = 0
        self._blocks, self._outside = blocks, list(outside)  # the latter are the rest of the model
        self._gathering, self._recorder = gathering, rec
        self._order = list(blocks)  # of the next forward pass
        self._left: list[Block] = []  # to be gathered in this pass
        self._used: list[Block] = []  # by this forward pass, in this order
        self._skipped: list[Block] = []  # the others, once it has ended
        self._is_open = False  # a backward pass has begun, and its first block has not come
        self._is_alike = True  # the pattern of all ranks, as far as they have come

    @property
    def is_common(self) -> bool:
        """Whether all ranks have used the same blocks, which is known when the first of a backward pass has come."""
        return self._is_alike and not self._is_open

    def compare(self, pattern: int) -> None:
        """Take note of another rank's pattern, which has come beside a chunk."""
        self._is_alike &= pattern == self.pattern

    # The forward pass

    @override
    def begin_forward(self) -> None:
        self._gathering.shard()
        self.end_backward()
        self._left, self._used, self._skipped = list(self._order), [], []

    @override
    def enter(self, block: Block) -> None:
        for each in self._up_to(block):
            self._gather(each)
        self._used.append(block)

    @override
    def leave(self, block: Block) -> None:
        spend_forward(self._recorder, block)
        self._gathering.free(block)

    @override
    def end_forward(self) -> None:
        """Gather the blocks that are left; the backward pass goes the other way, but begins with the rest."""
        self._gather_left()
        self._skipped = [block for block in self._blocks if block not in self._used]
        used = repr([self._blocks.index(block) for block in self._used])
        self.pattern = 0 if self._used == self._order else 1 + zlib.crc32(used.encode())
        self._is_open, self._is_alike = True, True
        self._left = self._outside[:1] or self._order[-1:]
        self._gathering.begin_pass(self._backward())
        for block in self._skipped:
            self._gathering.free(block)

    # The backward pass

    @override
    def enter_backward(self, block: Block) -> None:
        for each in self._up_to(block):
            self._gather(each)
            if each is not block and each in self._skipped:
                each.missing.clear()  # this rank has no gradients of it
                self._gathering.complete(each)

    def end_backward(self) -> None:
        """Gather the blocks that are left, which other ranks may have used, and free all."""
        self._gather_left()
        for block in self._blocks:
            self._gathering.free(block)

    def _plan(self, first: Block) -> None:
        """Order the backward pass, whose first block has come with the patterns of all."""
        self._is_open = False
        if self._is_alike:
            self._order = self._used + self._skipped
        self._gathering.pending = self._backward()
        self._left = [b for b in dict.fromkeys(self._outside + self._gathering.pending) if b is not first]

    def _backward(self) -> list[Block]:
        return [b for b in dict.fromkeys(reversed(self._order)) if b not in self._outside] + self._outside

    # Turns

    def _up_to(self, block: Block) -> Iterator[Block]:
        """Yield the blocks whose turn is before that of `block`, unless it has been, and `block`."""
        while self._is_open or block in self._left:
            yield (first := self._next())
            if first is block:
                return
        yield block

    def _gather_left(self) -> None:
        while self._left:
            self._gather(self._next())

    def _next(self) -> Block:
        block = self._left.pop(0)
        block.vector = None  # the others gather it now, also where this rank has kept it
        return block

    def _gather(self, block: Block) -> None:
        self._gathering.gather(block)
        if self._is_open:
            self._plan(block)
        if self._gathering.prefetch and self._left:
            self._gathering.begin_to_gather(self._left[0])
