"""A network as a graph of links between ranks, as a file of --network says it.

{"ranks": 2, "links": [{"from": 0, "to": 1, "bandwidth": "10gbit", "latency": "2us"},
                       {"from": 1, "to": 0, "bandwidth": "1gbit", "latency": "2us"}]}
"""

import json
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

from records.errors import UsageError, one_line
from transports.units import PAYLOAD, bytes_per_second, seconds

_MOST = 100_000  # ranks


class Edge(NamedTuple):
    """A link for one direction. `bandwidth` in bytes a second, `latency` in seconds."""

    src: int
    dst: int
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Graph:
    """So many ranks, and the links between them."""

    ranks: int
    edges: tuple[Edge, ...]

    def turned(self) -> "Graph":
        """Return the network with its links turned round."""
        return Graph(self.ranks, tuple(edge._replace(src=edge.dst, dst=edge.src) for edge in self.edges))

    def ways(self, src: int) -> dict[int, tuple[Edge, ...]]:
        """Return the way to each rank that can be reached: of least latency, then of fewest links (Dijkstra, 1959)."""
        found: dict[int, tuple[Edge, ...]] = {}
        leaving: dict[int, list[Edge]] = {rank: [] for rank in range(self.ranks)}
        for edge in self.edges:
            leaving[edge.src].append(edge)
        waiting: list[tuple[float, int, int, tuple[Edge, ...]]] = [(0.0, 0, src, ())]
        while waiting:
            latency, hops, rank, way = heappop(waiting)
            if rank not in found:
                found[rank] = way
                for edge in leaving[rank]:
                    heappush(waiting, (latency + edge.latency, hops + 1, edge.dst, (*way, edge)))
        return found


def complete(ranks: int) -> Graph:
    """Return a network with equal links between all ranks."""
    edges = (Edge(src, dst, 1.0, 0.0) for src in range(ranks) for dst in range(ranks) if src != dst)
    return Graph(ranks, tuple(edges))


def read_graph(path: str) -> Graph:
    """Read the file of --network. Raises UsageError."""
    try:
        written = json.loads(Path(path).read_text())
        ranks = written["ranks"]
        if type(ranks) is not int or not 1 <= ranks <= _MOST:
            raise ValueError(f"ranks {ranks!r}: must be a whole number from 1 to {_MOST}")
        graph = Graph(ranks, tuple(_edge(link, ranks) for link in written["links"]))
        if len({(edge.src, edge.dst) for edge in graph.edges}) < len(graph.edges):
            raise ValueError("two links have the same from and to; write one")
        for one, way in ((graph, "from rank 0 to"), (graph.turned(), "to rank 0 from")):
            if cut_off := set(range(ranks)) - one.ways(0).keys():
                raise ValueError(f"there is no way {way} rank {min(cut_off)}; add links")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        said = str(error) if type(error) is ValueError else f"{one_line(error)}; transports/graph.py shows such a file"
        raise UsageError(f"--network {path}: {said}") from None
    return graph


def _edge(link: dict[str, Any], ranks: int) -> Edge:
    src, dst = link["from"], link["to"]
    if not all(type(rank) is int and 0 <= rank < ranks for rank in (src, dst)) or src == dst:
        raise ValueError(f"a link from {src!r} to {dst!r}: must be two ranks from 0 to {ranks - 1}")
    return Edge(src, dst, PAYLOAD * bytes_per_second(link["bandwidth"]), seconds(link["latency"]))
