"""Swing: halving-doubling, partners 1, -1, 3, -5, ... away (De Sensi et al., 2024, arXiv 2401.09356).

In round k an even rank r is with rank r + d, an odd one with r - d, d = (1 - (-2)^(k + 1)) / 3. So ways are
short on a ring or torus. What rank r sends in round k is for the ranks that its partner reaches in later rounds.

N no power of two: see `folded` in `collectives.py`; the paper folds odd N only.
"""

from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport
from strategies.all_reduce.halving_doubling import HalvingDoubling, halve_and_double
from strategies.collectives import folded


@folded
def swing(vector: torch.Tensor, transport: Transport, n: int = 0) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    Raises PeerLost, WaitTimeout.
    """
    N, r = transport.world_size, transport.rank
    L = N.bit_length() - 1

    def partner(rank: int, k: int) -> int:
        distance = (1 - (-2) ** (k + 1)) // 3
        return (rank - distance if rank % 2 else rank + distance) % N

    def reached(rank: int, k: int) -> list[int]:
        return [rank] if k == L else reached(rank, k + 1) + reached(partner(rank, k), k + 1)

    chunk = reached(0, 0).index(r)  # so that the elements sent in a round are contiguous
    return halve_and_double(vector, transport, n, [(partner(r, k), chunk >> (L - 1 - k) & 1) for k in range(L)])


@dataclass(kw_only=True)
class Swing(HalvingDoubling):
    """Halving-doubling with partners at distances 1, -1, 3, -5, ...: short ways where ranks form a ring or torus."""

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `swing`."""
        return swing(vector, self.transport, n)
