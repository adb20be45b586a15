"""Synthesised: an all-reduce made for a network, by matching links and chunks (TACOS; Won et al., 2023).

See arXiv 2304.05301. An all-gather is made by matching: see `matching.py`. Reduce-scatter is the all-gather of the
network with its links turned round, backwards in time: what fans out there comes together here. Of many of each, which
differ in their random draws, the fastest is taken.

Any N. Every rank gets N - 1 chunks in each half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import ClassVar, NamedTuple

import torch

from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport, Work
from gradwire.networks.graph import Graph, complete
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.matching import AllGather, Passage

_EFFORT = 1 << 14  # the number of tries, times N^2; the fastest is taken


class Schedule(NamedTuple):
    """An all-reduce: the passages of its two halves."""

    reduce_scatter: Sequence[Passage]
    all_gather: Sequence[Passage]


@cache
def synthesise(graph: Graph, nbytes: float, seed: int = 0) -> Schedule:
    """Return an all-reduce of chunks of `nbytes` bytes, in which rank r sums chunk r."""
    turned, forth = (_fastest_all_gather(network, nbytes, seed) for network in (graph.turned(), graph))
    end = _seconds(turned)
    back = [Passage(end - each.end, end - each.start, each.dst, each.src, each.chunk) for each in turned]
    return Schedule(back, forth)


def _fastest_all_gather(graph: Graph, nbytes: float, seed: int) -> list[Passage]:
    tries = range(max(1, min(64, _EFFORT // graph.ranks**2)))
    return min((AllGather(graph, max(nbytes, 1.0), Random(f"{seed} {i}")).make() for i in tries), key=_seconds)


def _seconds(passages: Sequence[Passage]) -> float:
    return max((passage.end for passage in passages), default=0.0)


def run_schedule(vector: torch.Tensor, transport: Transport, n: int, schedule: Schedule) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    Every rank sends and receives in the order of the schedule. Raises PeerLost, WaitTimeout.
    """
    N, r, sent = transport.world_size, transport.rank, list[Work]()
    chunks = vector.tensor_split(N)
    totals = [n] * N
    for sends, peer, c in _of_rank(schedule.reduce_scatter, r, N):
        if sends:
            sent.append(transport.isend(chunks[c], peer, f"reduce {c}", n=totals[c]))
            continue
        with transport.recv(peer, f"reduce {c}") as received:
            chunks[c].add_(received.vector)
            totals[c] += received.n
    for sends, peer, c in _of_rank(schedule.all_gather, r, N):
        if sends:
            sent.append(transport.isend(chunks[c], peer, f"gather {c}"))
        else:
            transport.recv(peer, f"gather {c}").copy_to(chunks[c])
    for work in sent:
        work.wait()
    return totals[r]


def _of_rank(passages: Sequence[Passage], rank: int, N: int) -> Iterator[tuple[bool, int, int]]:
    """Yield the messages of a rank: whether it sends, its peer, the chunk.

    At equal times it receives first, and sends to its right neighbour first, as all wait at one card.
    """
    sends = [(p.start, True, (p.dst - rank) % N, p.dst, p.chunk) for p in passages if p.src == rank]
    receives = [(p.end, False, (rank - p.src) % N, p.src, p.chunk) for p in passages if p.dst == rank]
    yield from ((is_sent, peer, chunk) for _, is_sent, _, peer, chunk in sorted(sends + receives))


@dataclass(kw_only=True)
class Synthesised(AllReduceSGD):
    """An all-reduce that is made for --network, by matching idle links and chunks; by default all ranks are linked."""

    traits = replace(AllReduceSGD.traits, ranks=(1, 128))  # of more: minutes
    plans_for_network: ClassVar[bool] = True  # its messages depend on --network

    def cost(self, kind: str | None = None) -> Cost:
        """Every rank gets N - 1 chunks of the gradient, then N - 1 of sums: where all are linked, at a time."""
        sent = "2 (N - 1) P / N"
        return Cost(worker=Traffic("2 (N - 1)", sent), path=Traffic("2", sent))

    def setup(self) -> None:
        """Make the schedule, for a chunk of the gradient."""
        N, network = self.transport.world_size, self.settings.network
        graph = network if isinstance(network, Graph) else complete(N)
        self.schedule = synthesise(graph, self.replica.x.nbytes / N, self.seed)

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `run_schedule`."""
        return run_schedule(vector, self.transport, n, self.schedule)
