"""Synthesised: an all-reduce made for a network, by matching links and chunks (TACOS; Won et al., 2023).

See arXiv 2304.05301. Whenever links of the network are idle, each, the fastest first, takes the chunk that its sender
has, its receiver lacks and fewest ranks have; a slow link takes none that could come sooner another way. That is an
all-gather. Reduce-scatter is the all-gather of the network with its links turned round, backwards in time: what fans
out there comes together here.

Any N. Every rank gets N - 1 chunks in each half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

import numpy as np
import torch

from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport, Work
from gradwire.networks.graph import Graph, complete
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD

_EFFORT = 1 << 14  # the tries, of which the fastest is taken, times N^2
_ROUNDING = 1e-6


class Passage(NamedTuple):
    """A chunk passes a link, in seconds after the start."""

    start: float
    end: float
    src: int
    dst: int
    chunk: int


class Schedule(NamedTuple):
    """An all-reduce: the passages of its two halves."""

    reduce_scatter: Sequence[Passage]
    all_gather: Sequence[Passage]


@cache
def synthesise(graph: Graph, nbytes: float, seed: int = 0) -> Schedule:
    """Return an all-reduce of chunks of so many bytes, after which rank r has summed chunk r."""
    tries = [f"{seed} {i}" for i in range(max(1, min(64, _EFFORT // graph.ranks**2)))]
    back, forth = (
        min((gather(one, max(nbytes, 1.0), Random(name)) for name in tries), key=_seconds)
        for one in (graph.turned(), graph)
    )
    total = _seconds(back)
    return Schedule([Passage(total - end, total - start, dst, src, c) for start, end, src, dst, c in back], forth)


def gather(graph: Graph, nbytes: float, random: Random) -> list[Passage]:
    """Return an all-gather of chunks of so many bytes, of which rank r has chunk r."""
    N = graph.ranks
    has, due = ([1 << rank for rank in range(N)] for _ in range(2))  # chunks, as bits; with those on their way
    copies, free, passages = [1] * N, dict.fromkeys(graph.edges, 0.0), list[Passage]()
    came = np.where(np.eye(N), 0.0, np.inf)  # when each chunk is at each rank
    far = came.copy()  # seconds from rank to rank, on an idle network (Floyd, 1962)
    for src, dst, bandwidth, latency in graph.edges:
        far[src, dst] = nbytes / bandwidth + latency
    for k in range(N):
        far = np.minimum(far, far[:, k : k + 1] + far[k])
    patience = random.choice((1.0, 2.0, 4.0, 1e9))  # for a slow link, as the other way may be busy
    events = [(0.0, 0, 0)]  # a heap: a chunk comes to a rank, or a link is idle again
    while len(passages) < N * (N - 1):
        time = events[0][0]
        while events and events[0][0] <= time:
            _, rank, bit = heappop(events)
            has[rank] |= bit
        idle = []
        for edge in graph.edges:
            if free[edge] <= time and (choices := has[edge.src] & ~due[edge.dst]):
                idle.append((-edge.bandwidth, choices.bit_count(), random.random(), edge))
        for *_, edge in sorted(idle):
            src, dst, bandwidth, latency = edge
            choices = has[src] & ~due[dst]
            soon = np.min(np.maximum(time, came) + far[:, dst], axis=1) - time  # another way, for each chunk
            takes = nbytes / bandwidth + latency
            able = [c for c in range(N) if choices >> c & 1 and takes <= patience * soon[c] * (1 + _ROUNDING)]
            if able:
                chunk = min(able, key=lambda c: (copies[c], random.random()))
                free[edge] = time + nbytes / bandwidth
                end = came[chunk, dst] = free[edge] + latency
                passages.append(Passage(time, end, src, dst, chunk))
                due[dst] |= 1 << chunk
                copies[chunk] += 1
                heappush(events, (free[edge], 0, 0))
                heappush(events, (end, dst, 1 << chunk))
    return passages


def _seconds(passages: Sequence[Passage]) -> float:
    return max((one.end for one in passages), default=0.0)


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
    """Yield what a rank does: whether it sends, to or from whom, which chunk.

    At one time it receives first, and the right neighbour is the first to be sent to, as all at once wait at a card.
    """
    sends = [(one.start, True, (one.dst - rank) % N, one.dst, one.chunk) for one in passages if one.src == rank]
    receives = [(one.end, False, (rank - one.src) % N, one.src, one.chunk) for one in passages if one.dst == rank]
    yield from ((is_sent, peer, chunk) for _, is_sent, _, peer, chunk in sorted(sends + receives))


@dataclass(kw_only=True)
class Synthesised(AllReduceSGD):
    """An all-reduce that is made for --network, by matching idle links and chunks; by default all ranks are linked."""

    traits = replace(AllReduceSGD.traits, ranks=(1, 128), plans_for_network=True)  # of more: minutes

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
