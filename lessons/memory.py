"""Lab 9, to be filled in: memory that is held for as long as it is needed. The text of the lab is in 9_memory.ipynb.

python -m lessons.check memory lessons/memory.py

python train.py --strategy lessons.memory:Mine --n_gpus 4 --memory      # when it is right
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.core.transports.base import Transport
from gradwire.sharding import blocks
from gradwire.sharding.block_observer import pop_gradients
from strategies import FullySharded


@dataclass(eq=False)
class Block:
    """A block of the model, as one rank has it. Its n elements are cut into N chunks; rank r owns number (r + 1) mod N.

    `lengths`: of its chunks; `own`: this rank's chunk of the parameters; `parameters` [n]: all of them, while they are
    gathered; `gradients` [n]: this rank's, from the backward pass until they are reduced; `own_gradients`: this rank's
    chunk of their mean over all ranks.
    """

    name: str
    lengths: Sequence[int]
    own: torch.Tensor
    parameters: torch.Tensor | None = None
    gradients: torch.Tensor | None = None
    own_gradients: torch.Tensor | None = None

    def cut(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the chunks of a vector [n]: views, so who writes into a chunk writes into the vector."""
        return vector.split([*self.lengths])


def gather(transport: Transport, block: Block) -> None:
    """Set block.parameters to a new vector [n] of the chunks of all ranks."""
    raise NotImplementedError(
        "gather: block.own.new_empty(n) is a vector of the right kind. Send block.own to all peers; which chunk of the "
        "new vector is this rank's, and which is that of rank k?"
    )


def free(block: Block) -> None:
    """Free the memory of block.parameters."""
    raise NotImplementedError("free: memory is freed when no tensor refers to it. Which one still does?")


def reduce_scatter(transport: Transport, block: Block) -> None:
    """Set block.own_gradients to this rank's chunk of the mean over all ranks; free the memory of block.gradients."""
    raise NotImplementedError(
        "reduce-scatter: every chunk of block.gradients goes to the rank that owns it, which adds it to its own. Then "
        "keep one chunk, in memory of its own: a view keeps all of the vector"
    )


@dataclass(kw_only=True)
class Mine(FullySharded):
    """Fully sharded, by the functions above, as if every rank had as many samples."""

    gather_block, free_block, reduce_block = staticmethod(gather), staticmethod(free), staticmethod(reduce_scatter)
    prefetch: ClassVar[bool] = False  # type: ignore[misc]  # no option: a block is gathered at once

    def setup(self) -> None:
        """Show the functions the blocks."""
        super().setup()
        lengths = {block: [chunk.stop - chunk.start for chunk in block.chunks] for block in self.cut}
        self.mine = {block: Block(block.name, lengths[block], self.x[block.place]) for block in self.cut}

    def gather(self, block: blocks.Block) -> None:
        """Give the parameters of the block memory, with the elements of all ranks."""
        if block.vector is None:
            with self.transport.recorder.holding("gathered parameters"):
                self.gather_block(self.transport, mine := self.mine[block])
            assert mine.parameters is not None, "the check has seen it"
            self.bind(block, mine.parameters)

    def free(self, block: blocks.Block) -> None:
        """Forget the block's parameters."""
        super().free(block)
        self.free_block(self.mine[block])

    def reduce(self, block: blocks.Block, n: int) -> None:
        """g of this rank's chunk of the block <- mean of all g_k; forget the others."""
        mine, self.total = self.mine[block], n * self.transport.world_size
        with self.transport.recorder.holding("gradients"):
            mine.gradients = self.x.new_empty(block.n)
            pop_gradients(self.replica, block, mine.gradients)
            self.reduce_block(self.transport, mine)
        assert mine.own_gradients is not None, "the check has seen it"
        self.g[block.place] = mine.own_gradients
        mine.own_gradients = None
