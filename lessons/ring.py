"""Lab 2, to be filled in: the ring all-reduce. The text of the lab is in 2_ring.ipynb.

python -m lessons.check ring lessons/ring.py

python train.py --strategy lessons.ring:Mine --n_gpus 4      # when it is right: trains by it
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport, Work
from strategies import Cost, RingAllReduce, Strategy


def all_reduce(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the mean over all ranks, in place."""
    chunks = torch.tensor_split(vector, transport.world_size)  # views: who writes into a chunk writes into the vector
    sent: list[Work] = []
    for phase in (share_reduce, share_only):
        works = phase(transport, chunks)
        if works is None:
            raise TypeError(f"{phase.__name__} returned None; expected the list of Works")
        sent += works
    for work in sent:  # until the neighbour has read what was sent, it is not to be changed
        work.wait()
    raise NotImplementedError("the mean: vector holds the sum here; divide it by N, in place")


def share_reduce(transport: Transport, chunks: Sequence[torch.Tensor]) -> list[Work]:
    """Chunk (r + 1) mod N becomes the sum over all ranks, in N - 1 steps. Returns the Works of what was sent."""
    raise NotImplementedError(
        "share-reduce: in step s = 0 .. N - 2 send chunk (r - s) mod N to the right. Which one comes from the left? "
        "Add it to your chunk of the same number"
    )


def share_only(transport: Transport, chunks: Sequence[torch.Tensor]) -> list[Work]:
    """Every rank gets the finished chunks of all others, in N - 1 steps. Returns the Works of what was sent."""
    raise NotImplementedError(
        "share-only: which chunk is finished on this rank? Send that one first, to the right; copy what comes in"
    )


@dataclass(kw_only=True)
class Mine(Strategy):
    """The gradients of all ranks are averaged by the all-reduce above, and all take the same step."""

    all_reduce = staticmethod(all_reduce)

    def cost(self, kind: str | None = None) -> Cost:
        """As of the ring."""
        return RingAllReduce().cost()

    def step(self, n_samples: int) -> None:
        """g <- mean of all g_k, as if every rank had as many samples; x <- optimizer(x, g)."""
        g = self.replica.collect()
        self.all_reduce(self.transport, g)
        self.updater.step(g, n_samples * self.transport.world_size)
        self.replica.zero_grad()
