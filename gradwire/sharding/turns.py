"""In which order all ranks gather the blocks of a model, though the passes of some may skip a block."""

import zlib
from collections.abc import Iterator, Sequence

from gradwire.sharding.blocks import Block


class Turns:
    """The blocks that are still to be gathered in a pass, in the order of all ranks.

    A forward pass follows the order in which all ranks have used the blocks in a pass before; the first, that of the
    model. When it has ended, `pattern` is 0 if this rank has used all blocks in that order, else a check sum of those
    that it has used, and the backward pass `is_open`: it begins with one block, and when the patterns of all have come
    with that, `plan` orders the others. `is_common`: whether all ranks had one pattern.
    """

    def __init__(self, blocks: Sequence[Block], outside: Sequence[Block]) -> None:
        self.left: list[Block] = []  # of this pass
        self.pattern, self.is_open, self.is_common = 0, False, True
        self._blocks, self._outside = blocks, list(outside)  # the latter are the rest of the model
        self._order = list(blocks)  # of the next forward pass
        self._used: list[Block] = []  # by this forward pass, in this order
        self.skipped: list[Block] = []  # the others, once it has ended

    def begin_forward(self) -> None:
        """All blocks have their turns."""
        self.left, self._used, self.skipped = list(self._order), [], []

    def before(self, block: Block) -> Iterator[Block]:
        """Yield the blocks whose turn is before that of `block`, which begins then, unless it has been."""
        while self.is_open or block in self.left:
            if (first := self._next()) is block:
                return
            yield first

    def rest(self) -> Iterator[Block]:
        """Yield the blocks that are left."""
        while self.left:
            yield self._next()

    def _next(self) -> Block:
        block = self.left.pop(0)
        block.vector = None  # the others gather it now, also where this rank has kept it
        return block

    def note(self, block: Block) -> None:
        """Note that the forward pass uses a block."""
        self._used.append(block)

    def end_forward(self) -> list[Block]:
        """Begin the backward pass; return the blocks in the order in which they are reduced if the ranks differ."""
        self.skipped = [block for block in self._blocks if block not in self._used]
        used = repr([self._blocks.index(block) for block in self._used])
        self.pattern = 0 if self._used == self._order else 1 + zlib.crc32(used.encode())
        self.is_open, self.left = True, self._outside[:1] or self._order[-1:]
        return self._backward()

    def plan(self, first: Block, is_common: bool) -> list[Block]:
        """Order the backward pass, whose first block has come; return the order in which blocks are reduced."""
        self.is_open, self.is_common = False, is_common
        if is_common:
            self._order = self._used + self.skipped
        order = self._backward()
        self.left = [block for block in dict.fromkeys(self._outside + order) if block is not first]
        return order

    def _backward(self) -> list[Block]:
        return [b for b in dict.fromkeys(reversed(self._order)) if b not in self._outside] + self._outside
