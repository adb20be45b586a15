"""In which order all ranks gather the blocks of a model, though the passes of some may skip a block."""

from collections.abc import Iterable, Iterator, Sequence

from gradwire.sharding.blocks import Block


class Turns:
    """The blocks that are still to be gathered in a pass, in the order of all ranks.

    A forward pass follows the order in which the pass before used the blocks; the first, that of the model.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.left: list[Block] = []  # of this pass
        self._order = list(blocks)  # of the next forward pass
        self._is_first = True  # whether the forward pass is the first
        self._entered: list[tuple[Block, bool]] = []  # in this forward pass, and whether each was used
        self._used: set[Block] = set()  # in the forward pass that ended last

    def begin_forward(self) -> None:
        """All blocks have their turns."""
        self.left, self._entered = list(self._order), []

    def before(self, block: Block) -> Iterator[Block]:
        """Yield the blocks whose turn is before that of `block`, which begins then, unless it has been."""
        if block in self.left:
            while (first := self.left.pop(0)) is not block:
                yield first

    def rest(self) -> Iterator[Block]:
        """Yield the blocks that are left."""
        while self.left:
            yield self.left.pop(0)

    def note(self, block: Block, is_used: bool) -> None:
        """Note that the forward pass uses a block in its turn; or not, or not yet."""
        self._entered.append((block, is_used))

    def end_forward(self) -> None:
        """Take over the order of the pass."""
        blocks = [block for block, _ in self._entered]
        if self._is_first:  # the order was a guess: what was skipped and then used is noted twice
            blocks = [block for block, is_used in self._entered if is_used or blocks.count(block) == 1]
            self._is_first = False
        self._order, self._used = blocks, {block for block, is_used in self._entered if is_used}

    def backward_order(self) -> Iterable[Block]:
        """Return the blocks from the last that the forward pass used to the first."""
        return dict.fromkeys(reversed(self._order))

    def is_used(self, block: Block) -> bool:
        """Return whether the forward pass used the block."""
        return block in self._used
