"""An all-gather for a network, by matching links and chunks (TACOS; Won et al., 2023, arXiv 2304.05301).

Whenever links are idle, each, the fastest first, takes the chunk that its sender has, its receiver lacks and fewest
ranks have; a slow link takes none that could come sooner another way. Choices that are equal are drawn at random.

Beyond the paper, where links differ, an all-gather draws how patient it is: how many times as long as another way a
slow link may take, for the other way may be busy.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

import numpy as np

from gradwire.networks.graph import Edge, Graph

_PATIENCE = (1.0, 2.0, 4.0, 1e9)
_ROUNDING = 1e-6
_NOTHING = -1  # in place of a chunk: a link is idle again


class Passage(NamedTuple):
    """A chunk passes a link, in seconds after the start."""

    start: float
    end: float
    src: int
    dst: int
    chunk: int


class AllGather:
    """An all-gather under construction, of N chunks of `nbytes` bytes; rank r begins with chunk r."""

    def __init__(self, graph: Graph, nbytes: float, random: Random) -> None:
        N = graph.ranks
        self.graph, self.nbytes, self.random = graph, nbytes, random
        self.passages: list[Passage] = []
        self.time = 0.0
        self.has, self.due = ([{rank} for rank in range(N)] for _ in range(2))  # due: has, or is on its way to it
        self.copies = [1] * N  # ranks that have a chunk, or to which it is on its way
        self.came = np.where(np.eye(N), 0.0, np.inf)  # when each chunk is at each rank
        self.idle_at = dict.fromkeys(graph.edges, 0.0)
        self.far = shortest_times(graph, nbytes)
        self.patience = random.choice(_PATIENCE)
        self.events = [(0.0, 0, _NOTHING)]  # a heap: when a chunk comes to a rank, or a link is idle again

    def make(self) -> list[Passage]:
        """Match idle links and chunks until every rank has all, or is to get it."""
        N = self.graph.ranks
        while len(self.passages) < N * (N - 1):
            self.wait()
            for link in self.idle_links():
                if able := list(self.able(link)):
                    self.send(min(able, key=lambda chunk: (self.copies[chunk], self.random.random())), link)
        return self.passages

    def wait(self) -> None:
        """Go on to the next events."""
        self.time = self.events[0][0]
        while self.events and self.events[0][0] <= self.time:
            _, rank, chunk = heappop(self.events)
            if chunk != _NOTHING:
                self.has[rank].add(chunk)

    def idle_links(self) -> list[Edge]:
        """Return the idle links that can take something: the fastest first, then those with the fewest choices."""
        found = []
        for link in self.graph.edges:
            if self.idle_at[link] <= self.time and (choices := self.has[link.src] - self.due[link.dst]):
                found.append((-link.bandwidth, len(choices), self.random.random(), link))
        return [link for *_, link in sorted(found)]

    def able(self, link: Edge) -> Iterator[int]:
        """Yield the chunks that the receiver lacks and that would not come much sooner another way."""
        takes = self.nbytes / link.bandwidth + link.latency
        sooner = np.min(np.maximum(self.time, self.came) + self.far[:, link.dst], axis=1) - self.time
        for chunk in sorted(self.has[link.src] - self.due[link.dst]):
            if takes <= self.patience * sooner[chunk] * (1 + _ROUNDING):
                yield chunk

    def send(self, chunk: int, link: Edge) -> None:
        """Let the link take the chunk."""
        idle_at = self.idle_at[link] = self.time + self.nbytes / link.bandwidth
        comes_at = self.came[chunk, link.dst] = idle_at + link.latency
        self.passages.append(Passage(self.time, comes_at, link.src, link.dst, chunk))
        self.due[link.dst].add(chunk)
        self.copies[chunk] += 1
        heappush(self.events, (idle_at, 0, _NOTHING))
        heappush(self.events, (comes_at, link.dst, chunk))


def shortest_times(graph: Graph, nbytes: float) -> np.ndarray:
    """Return the seconds [N, N] that a chunk takes from rank to rank on an idle network (Floyd, 1962)."""
    far = np.where(np.eye(graph.ranks), 0.0, np.inf)
    for src, dst, bandwidth, latency in graph.edges:
        far[src, dst] = nbytes / bandwidth + latency
    for k in range(graph.ranks):
        far = np.minimum(far, far[:, k : k + 1] + far[k])
    return far
