"""Lab 15, to be filled in: the matrices of a block cut over ranks. The text is in 15_columns.ipynb.

python -m lessons.check columns lessons/columns.py
"""

import torch
import torch.distributed as dist  # noqa: F401 - for the functions below

from lessons.passes import Block, attend, between  # noqa: F401


def f(x: torch.Tensor) -> torch.Tensor:
    """Stand where all ranks have the same x, and each goes on with its own columns."""
    raise NotImplementedError(
        "f: `between(x, forward, backward)`. What do the ranks need of each other's x? And each rank's gradient of x "
        "comes from its own columns only: what is the gradient of x?"
    )


def g(x: torch.Tensor) -> torch.Tensor:
    """Stand where each rank has a part of a sum, and all go on with the sum."""
    raise NotImplementedError("g: what is the sum, and what is the gradient of a term of it? all_reduce is in place")


def cut(block: Block, rank: int, N: int) -> Block:
    """Return this rank's part of a block: contiguous weights, of which N ranks together have each number once."""
    raise NotImplementedError("cut: columns or rows? Which matrices can begin with the whole x, and which are behind?")


def mlp(x: torch.Tensor, part: Block) -> torch.Tensor:
    """Return gelu(x A) B of the whole block, for x [tokens, d], by this rank's part."""
    raise NotImplementedError("mlp: where do f and g stand, so that one of them is enough in each pass?")


def attention(x: torch.Tensor, part: Block, heads: int) -> torch.Tensor:
    """Return the attention of the whole block, times O, by this rank's part, which has `heads` of the heads."""
    raise NotImplementedError("attention: `attend(q, k, v, heads)` needs nothing of other ranks' heads. And O?")


def loss(logits: torch.Tensor, targets: torch.Tensor, first: int) -> torch.Tensor:
    """Return the mean cross-entropy over the tokens, the vocabulary being cut.

    `logits` [tokens, n] are those of this rank's part of the vocabulary, numbers first to first + n - 1. `targets`
    [tokens] are numbers of the whole vocabulary.
    """
    raise NotImplementedError(
        "loss: log(sum of exp(z)) - z of the target, for z less the largest logit of all ranks. What does a rank know "
        "of the three, and how does a sum over ranks get its gradient? How many all-reduces are enough?"
    )
