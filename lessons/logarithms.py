"""Lab 10, to be filled in: all-reduces in log2 N rounds, and in twice as many. The text is in 10_logarithms.ipynb.

python -m lessons.check logarithms lessons/logarithms.py

python train.py --strategy lessons.logarithms:Mine --n_gpus 4      # when it is right
"""

from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport
from lessons import ring
from strategies import Cost, RecursiveDoubling


def recursive_doubling(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the sum over all N ranks, in place.

    In log2 N rounds of whole vectors, with a second vector for what comes. N no power of two: p is the largest below,
    and the first 2 (N - p) ranks pair up; the even one gives its vector to the odd one, and gets the sum in the end.
    """
    raise NotImplementedError(
        "recursive-doubling: first for N a power of two. With whom does rank r exchange in round k = 0, 1, ..., so "
        "that no part is added twice? The partner reads `vector` where it lies: when may you add to it?"
    )


def halving_doubling(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the sum over all N ranks, in place; N is a power of two.

    In log2 N rounds each rank ends with the sum of one part of N; in as many, back the same way, all get all parts.
    """
    raise NotImplementedError(
        "halving-doubling: of what both of a pair still sum, one keeps the first half and the other the second. Which "
        "half is sent, and to what is added what comes? On the way back, who has what you lack?"
    )


@dataclass(kw_only=True)
class Mine(ring.Mine):
    """The gradients of all ranks are summed by `recursive_doubling` above, and all take the same step."""

    add_up = staticmethod(recursive_doubling)

    def cost(self, kind: str | None = None) -> Cost:
        """As of recursive doubling."""
        return RecursiveDoubling().cost()

    def all_reduce(self, transport: Transport, vector: torch.Tensor) -> None:
        """Replace `vector` [P] on every rank by the mean over all ranks, in place."""
        self.add_up(transport, vector)
        vector.div_(transport.world_size)
