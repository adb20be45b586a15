"""A network as a graph of links between ranks, as a file of --network says it.

{"ranks": 2, "links": [{"from": 0, "to": 1, "bandwidth": "10gbit", "latency": "2us"},
                       {"from": 1, "to": 0, "bandwidth": "1gbit", "latency": "2us"}]}
"""

import json
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.core.records.errors import UsageError, one_line
from gradwire.networks.units import PAYLOAD, bytes_per_second, seconds

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

    def last_links(self, src: int) -> dict[int, Edge]:
        """Return by which link the way to each rank that can be reached ends.

        The way is that of least latency, then of fewest links (Dijkstra, 1959).
        """
        found: dict[int, Edge] = {}
        leaving: dict[int, list[Edge]] = {rank: [] for rank in range(self.ranks)}
        for edge in self.edges:
            leaving[edge.src].append(edge)
        waiting = [(edge.latency, 1, edge) for edge in leaving[src]]
        heapify(waiting)
        while waiting:
            latency, hops, last = heappop(waiting)
            if last.dst not in found and last.dst != src:
                found[last.dst] = last
                for edge in leaving[last.dst]:
                    heappush(waiting, (latency + edge.latency, hops + 1, edge))
        return found


def complete(ranks: int) -> Graph:
    """Return a network with equal links between all ranks."""
    edges = (Edge(src, dst, 1.0, 0.0) for src in range(ranks) for dst in range(ranks) if src != dst)
    return Graph(ranks, tuple(edges))


def read_graph(path: str) -> Graph:
    """Read the file of --network. Raises UsageError."""
    try:
        ranks, links = _values(json.loads(Path(path).read_text(encoding="utf-8")), "ranks", "links")
        if type(ranks) is not int or not 1 <= ranks <= _MOST:
            raise ValueError(f"ranks {ranks!r}: must be a whole number from 1 to {_MOST}")
        if not isinstance(links, list):
            raise ValueError("links: must be a list")
        graph = Graph(ranks, tuple(_edge(link, ranks) for link in links))
        if len({(edge.src, edge.dst) for edge in graph.edges}) < len(graph.edges):
            raise ValueError("two links have the same from and to; write one")
        for directed, way in ((graph, "from rank 0 to"), (graph.turned(), "to rank 0 from")):
            if cut_off := set(range(1, ranks)) - directed.last_links(0).keys():
                raise ValueError(f"there is no way {way} rank {min(cut_off)}; add links")
    except (OSError, ValueError, RecursionError) as error:
        said = (
            str(error)
            if type(error) is ValueError
            else f"{one_line(error)}; gradwire/networks/graph.py shows such a file"
        )
        raise UsageError(f"--network {path}: {said}") from None
    return graph


def _edge(link: Any, ranks: int) -> Edge:
    src, dst, bandwidth, latency = _values(link, "from", "to", "bandwidth", "latency")
    if not all(type(rank) is int and 0 <= rank < ranks for rank in (src, dst)) or src == dst:
        raise ValueError(f"a link from {src!r} to {dst!r}: must be two ranks from 0 to {ranks - 1}")
    try:
        return Edge(src, dst, PAYLOAD * bytes_per_second(str(bandwidth)), seconds(str(latency)))
    except ValueError as error:
        raise ValueError(f"the link from {src} to {dst}: {error}") from None


def _values(written: Any, *keys: str) -> list[Any]:
    if not isinstance(written, dict) or written.keys() != {*keys}:
        found = [*written] if isinstance(written, dict) else str(written)[:80]
        raise ValueError(f"{found}: must be an object of {', '.join(keys)}, as gradwire/networks/graph.py shows")
    return [written[key] for key in keys]
