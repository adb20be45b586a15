"""Gossip: every rank averages its model with its neighbours' only, and no sum goes through all.

Synchronous (D-PSGD; Lian et al., 2017, Can decentralized algorithms outperform centralized algorithms?, arXiv
1705.09056, algorithm 1). At step t rank k computes g_k on its x_k, then

    x_k <- sum over j of W_kj x_j         the mean, with equal weights, of its own x and those that it receives
    x_k <- optimizer(x_k, g_k)            on the averaged x_k, with a state of its own

- `topology` ring: rank k receives from k - 1 and k + 1, so the weights are 1/3 (N = 2: one neighbour, 1/2). Without
  gradients the distance between the replicas shrinks in a step by the second largest |eigenvalue| of W, which for
  N > 2 is max over m > 0 of |1 + 2 cos(2 pi m / N)| / 3.
- `topology` exponential: a graph of one peer a step (Ying et al., 2021, Exponential graph is provably efficient for
  decentralized deep training, arXiv 2110.13363). With i = t mod ceil(log2 N), rank k receives from k + 2^i and sends to
  k - 2^i, with weights 1/2. If N is a power of two, log2 N such averages make the exact mean.

W keeps the mean of all x_k, which is what is evaluated. The paper lets the messages travel while g_k is computed, as
x_k does not change meanwhile; here they follow the gradient, so that a step's time is the sum of both.

`asynchronous`: nobody waits for all neighbours, and exchanges go from pair to pair: see `ad_psgd.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getfile
from typing import ClassVar

import torch

from records.errors import UsageError, one_of
from strategies.common.base import RunSize
from strategies.common.living import ROOT
from strategies.common.traits import Traffic
from strategies.local_models.ad_psgd import Exchanges
from strategies.local_models.drifting import Drifting

RING, EXPONENTIAL = "ring", "exponential"


@dataclass(kw_only=True)
class Gossip(Drifting):
    """Each rank averages its model with its neighbours' in every step: no message goes further than to a neighbour.

    With `asynchronous`, all ranks but rank 0 may die, and the others carry on.
    """

    topology: str = RING
    """Who a rank's neighbours are: ring (both sides), or exponential (one, 1, 2, 4, ... ranks away, in turn)."""
    asynchronous: bool = False  # type: ignore[misc]
    """AD-PSGD: every other rank exchanges with one neighbour at a time, and nobody waits for the slowest."""

    may_die_with = "--asynchronous"
    traffic = {"worker": Traffic("min(2, N - 1)", "min(2, N - 1) P")}
    critical_path: ClassVar[Traffic | None] = Traffic("min(1, N - 1)", "min(2, N - 1) P")

    def __post_init__(self) -> None:
        """What is said of the class is said of the ring."""
        if self.asynchronous:
            self.workers_may_die = True  # type: ignore[misc]
            self.traffic = {"worker": Exchanges.traffic}  # type: ignore[misc]
            self.critical_path = None  # type: ignore[misc]
        elif self.topology == EXPONENTIAL:
            one = Traffic("min(1, N - 1)", "min(1, N - 1) P")
            self.traffic, self.critical_path = {"worker": one}, one  # type: ignore[misc]

    def check(self, run: RunSize) -> None:
        """Pairs need a ring; where no server takes the messages, no order of them decides the result."""
        one_of(self, "topology", (RING, EXPONENTIAL))
        if self.asynchronous and self.topology != RING:
            raise UsageError(
                f"--topology {self.topology}: --asynchronous has its pairs on a ring; leave one of them out"
            )
        if self.asynchronous and run.replayed:
            raise UsageError(
                "--replay: with --asynchronous every rank takes messages in an order of its own; leave it out"
            )

    @classmethod
    def sources(cls) -> set[str]:
        """Also of what sends with `asynchronous`."""
        return super().sources() | {getfile(Exchanges)}

    def setup(self) -> None:
        """Make a vector for what is averaged; with `asynchronous`, know the partners."""
        super().setup()
        self.exchanges = Exchanges(self) if self.asynchronous else None
        if not self.exchanges:
            self.mixed = torch.empty_like(self.replica.x)

    def join(self, resumed: bool) -> None:
        """See Strategy. Where ranks may die, all begin with what rank 0 has."""
        if self.exchanges:
            self.exchanges.join()
        else:
            super().join(resumed)

    def begin_step(self, n_samples: int) -> None:
        """Answer who has asked meanwhile."""
        if self.exchanges:
            self.exchanges.attend()

    def step(self, n_samples: int) -> None:
        """x_k <- the mean over the neighbours; x_k <- optimizer(x_k, g_k)."""
        g = self.replica.collect()
        if self.exchanges:
            self.exchanges.mix()
        else:
            self.mix(self.descent.version)
        self.descent.step(g, n_samples * self.weight)
        self.replica.zero_grad()
        if self.exchanges:
            self.exchanges.after_step(n_samples)

    @property
    def weight(self) -> int:
        """How often this rank counts its own samples: for all ranks, unless the others tell it of theirs."""
        told = self.asynchronous and self.transport.rank == ROOT
        return 1 if told else self.transport.world_size

    def mix(self, t: int) -> None:
        """x_k <- the mean of x_k and of what the neighbours of step t have."""
        x, transport = self.replica.x, self.transport
        sources, destinations = neighbours(self.topology, transport.rank, transport.world_size, t)
        sent = [transport.isend(x, k, "x") for k in destinations]
        self.mixed.copy_(x)
        for k in sources:
            with transport.recv(k, "x") as theirs:
                self.mixed.add_(theirs.vector)
        for work in sent:
            work.wait()
        torch.div(self.mixed, 1 + len(sources), out=x)

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """All steps; with `asynchronous`, this rank's own, until all together have the samples of the epoch."""
        return self.exchanges.steps() if self.exchanges else super().steps_of_epoch(start, stop)

    def finish(self) -> None:
        """Average the buffers; with `asynchronous`, when the last exchange has ended, over the ranks that are alive."""
        if self.exchanges:
            self.exchanges.finish()
        super().finish()

    def average(self, vector: torch.Tensor, what: str) -> None:
        """See Drifting."""
        if self.exchanges:
            self.exchanges.living.average(vector, what)
        else:
            super().average(vector, what)


def neighbours(topology: str, k: int, N: int, t: int) -> tuple[list[int], list[int]]:
    """Return whose x rank k receives at step t, and to whom it sends its own."""
    if N == 1:
        return [], []
    if topology == RING:
        both = list(dict.fromkeys([(k - 1) % N, (k + 1) % N]))  # all send left first: no card receives two at a time
        return both, both
    distance = 2 ** (t % math.ceil(math.log2(N)))
    return [(k + distance) % N], [(k - distance) % N]
