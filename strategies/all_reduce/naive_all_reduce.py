"""The naive all-reduce: all send to one, one sends to all.

Rank 0 receives and sends N - 1 whole vectors. But only 2 messages follow each other: for short vectors on few ranks it
is faster.
"""

from dataclasses import dataclass

import torch

from gradwire.core.strategy.traits import Cost, Traffic
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.collectives import naive_all_reduce


@dataclass(kw_only=True)
class NaiveAllReduce(AllReduceSGD):
    """All ranks send their gradient to rank 0, which sends the sum to all: what the ring avoids."""

    def cost(self, kind: str | None = None) -> Cost:
        """A gradient from each to rank 0, and the sum to each."""
        worker = Traffic("2 (N - 1) / N", "2 (N - 1) G / N")
        path, in_order = Traffic("2", "2 (N - 1) G", in_turn="2 (N - 1)"), Traffic("2", "N G", in_turn="N")
        return Cost(worker, path=path, in_order=in_order)

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `naive_all_reduce`."""
        return naive_all_reduce(vector, self.transport, n)
