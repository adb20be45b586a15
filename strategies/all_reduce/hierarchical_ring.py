"""Hierarchical ring: rings in racks, and across (Mikami et al., 2018, arXiv 1811.05233).

Reduce-scatter in the rack, ring all-reduce of the own chunk across racks, all-gather in the rack: what leaves a rank's
rack of k ranks is less than 2 / k vectors.

Where k does not divide N, N mod k ranks take no part: see `fold` in `collectives.py`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from typing_extensions import override

from gradwire.core.records.errors import between
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.collectives import all_gather, fold, reduce_scatter, ring_all_reduce
from strategies.subgroup import subgroup


def hierarchical_ring(vector: torch.Tensor, transport: Transport, n: int = 0, rack: int = 1) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    `rack`: the ranks in each rack, which are neighbours, at most N. Raises PeerLost, WaitTimeout.
    """
    N = transport.world_size
    return fold(partial(_in_racks, k=rack), vector, transport, n, N - N % rack)


def _in_racks(vector: torch.Tensor, transport: Transport, n: int, k: int) -> int:
    N, r = transport.world_size, transport.rank
    here = subgroup(transport, range(r - r % k, r - r % k + k))
    across = subgroup(transport, range(r % k, N, k))
    chunks = vector.tensor_split(k)
    n, sent = reduce_scatter(chunks, here, n)
    n = ring_all_reduce(chunks[(here.rank + 1) % k], across, n)
    sent += all_gather(chunks, here)
    for work in sent:
        work.wait()
    return n


@dataclass(kw_only=True)
class HierarchicalRing(AllReduceSGD):
    """A ring in each rack of so many ranks, and rings of chunks across: little passes the uplinks between racks."""

    rack: int = 1
    """The ranks in a rack, which are neighbours; 1: no racks, a plain ring."""

    @override
    def check(self, run: RunSize) -> None:
        between(self, "rack", 1, run.n_ranks)

    def cost(self, kind: str | None = None) -> Cost:
        """A ring of k and one of as many racks; the others of a pair send a vector and get one."""
        racks = "floor(N / rack)"
        return Cost(
            worker=Traffic(f"2 (rack {racks} (rack + {racks} - 2) + N % rack) / N", "2 (N - 1) G / N"),
            path=Traffic("2 (rack + ceil(N / rack) - 2)", "2 (1 + (N % rack > 0) - 1 / (N - N % rack)) G"),
        )

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `hierarchical_ring`."""
        return hierarchical_ring(vector, self.transport, n, self.rack)
