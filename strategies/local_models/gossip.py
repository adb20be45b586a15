"""Gossip: every rank averages its model with its neighbours' only, and no sum goes through all.

(D-PSGD; Lian et al., 2017, arXiv 1705.09056, algorithm 1.) At step t rank k computes g_k on its x_k, then

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
"""

import math
from dataclasses import dataclass

import torch

from gradwire.core.records.options import option
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Weight
from strategies.local_models.drifting import Drifting

RING, EXPONENTIAL = "ring", "exponential"


@dataclass(kw_only=True)
class Gossip(Drifting):
    """Each rank averages its model with its neighbours' in every step: no message goes further than to a neighbour."""

    topology: str = option(RING, choices=(RING, EXPONENTIAL))
    """The neighbours of a rank: ring (both sides), or exponential (one, 1, 2, 4, ... ranks away, in turn)."""

    def cost(self, kind: str | None = None) -> Cost:
        """x to each neighbour; the messages to several set off together."""
        neighbours = "min(2, N - 1)" if self.topology == RING else "min(1, N - 1)"
        return Cost(worker=Traffic(neighbours, f"{neighbours} P"), path=Traffic("min(1, N - 1)", f"{neighbours} P"))

    def memory(self, role: str) -> Footprint:
        """The mean over the ranks, and that over the neighbours."""
        return Footprint(other="2 P")

    def weight(self, workers: int) -> Weight | str:
        """No exchange changes the mean of all x_k, in which ranks count alike."""
        return Weight(workers, by_samples=False)

    def setup(self) -> None:
        """Make the vector that receives the mean."""
        super().setup()
        self.mixed = torch.empty_like(self.replica.x)

    def step(self, n_samples: int) -> None:
        """x_k <- the mean over the neighbours; x_k <- optimizer(x_k, g_k)."""
        g = self.replica.collect()
        self.mix(self.updater.version)
        self.updater.step(g, n_samples * self.transport.world_size)
        self.replica.zero_grad()

    def mix(self, t: int) -> None:
        """x_k <- the mean of x_k and of the x of the neighbours of step t."""
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


def neighbours(topology: str, k: int, N: int, t: int) -> tuple[list[int], list[int]]:
    """Return the ranks from which rank k receives x at step t, and those to which it sends its own."""
    if N == 1:
        return [], []
    if topology == RING:
        both = list(dict.fromkeys([(k - 1) % N, (k + 1) % N]))  # all send left first: no card receives two at a time
        return both, both
    distance = 2 ** (t % math.ceil(math.log2(N)))
    return [(k + distance) % N], [(k - distance) % N]
