"""A network of machines in numbers: the cards that messages share, and the time when they arrive.

Every rank has a card of its own, which sends and receives at `bandwidth` bytes a second each. A message passes the
cards of its path, first its sender's, last its receiver's, and shares them with others as `sharing.py` says. Alone it
takes latency + overhead + bytes / bandwidth; for all of it but the latency both cards are occupied (the model of LogGP;
Alexandrov et al., 1995).

A network is a class with `path`. `OneSwitch` is the plain one, `Racks` has uplinks that all ranks of a rack share, and
`Linked` has no cards: each link between two ranks has a bandwidth of its own, and ranks pass on messages for others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any

from typing_extensions import override

from gradwire.core.transports.throttle import FAIR, IN_ORDER, Rates
from gradwire.networks.card import Card
from gradwire.networks.graph import Edge, Graph
from gradwire.virtual_time.sharing import Agenda, Fair, InOrder, Sharing


@dataclass
class Network(ABC):
    """Cards, and the way from rank to rank. `bandwidth` in bytes a second, `latency` and `overhead` in seconds."""

    world_size: int
    bandwidth: float
    latency: float
    sharing: str = field(default=FAIR, kw_only=True)
    late: float = field(default=1.0, kw_only=True)  # where cards are shared fairly: see Card
    overhead: float = field(default=0.0, kw_only=True)
    acknowledged: float = field(default=0.0, kw_only=True)  # of a message's bytes, what passes its way back meanwhile
    sends: list[Card] = field(init=False)
    receives: list[Card] = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"a network of {self.bandwidth} bytes a second: must be finite, and above 0")
        ranks = range(self.world_size)
        self.sends = [Card(f"rank {rank} sends", self.bandwidth, overhead=self.overhead) for rank in ranks]
        self.receives = [
            Card(f"rank {rank} receives", self.bandwidth, late=self.late, overhead=self.overhead) for rank in ranks
        ]

    def share(self, agenda: Agenda) -> Sharing:
        """Return what lets messages pass the cards, which are made anew, by the agenda of a run."""
        self.__post_init__()
        if self.sharing == IN_ORDER:
            return InOrder(agenda, self.delay)
        return Fair(agenda, self.delay, self.acknowledged)

    def way(self, src: int, dst: int) -> tuple[int, int]:
        """Return whose messages wait for each other, and have a latency: those from one rank to another."""
        return src, dst

    @abstractmethod
    def path(self, src: int, dst: int) -> list[Card]:
        """Return the cards that a message passes, in their order: from `sends[src]` to `receives[dst]`."""

    @property
    def rates(self) -> Rates | None:
        """All of it in a few numbers; None: it has more."""
        return Rates(self.bandwidth, self.latency, self.overhead, self.sharing)

    def delay(self, src: int, dst: int) -> float:
        """Return the latency from rank to rank."""
        return self.latency

    def cards(self) -> Iterator[Card]:
        """Return all cards."""
        return chain(self.sends, self.receives)


@dataclass
class OneSwitch(Network):
    """All ranks are at one switch, which is never full: only their own cards limit them."""

    @override
    def path(self, src: int, dst: int) -> list[Card]:
        return [self.sends[src], self.receives[dst]]


@dataclass
class Racks(Network):
    """So many racks of neighbouring ranks, each with one uplink of `rack_bandwidth` in each direction."""

    racks: int
    rack_bandwidth: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.up = [Card(f"rack {rack} up", self.rack_bandwidth) for rack in range(self.racks)]
        self.down = [Card(f"rack {rack} down", self.rack_bandwidth) for rack in range(self.racks)]

    @property
    @override
    def rates(self) -> Rates | None:
        racks = self.racks, self.rack_bandwidth
        return Rates(self.bandwidth, self.latency, self.overhead, self.sharing, *racks)

    def rack(self, rank: int) -> int:
        """Return the rack of a rank: the ranks are split as evenly as can be."""
        return rank * self.racks // self.world_size

    @override
    def path(self, src: int, dst: int) -> list[Card]:
        here, there = self.rack(src), self.rack(dst)
        between = [] if here == there else [self.up[here], self.down[there]]
        return [self.sends[src], *between, self.receives[dst]]

    @override
    def cards(self) -> Iterator[Card]:
        return chain(super().cards(), self.up, self.down)


class Linked(Network):
    """A graph of links; a message passes all links of the way of least latency at once, and shares them."""

    def __init__(self, graph: Graph, **shared: Any) -> None:
        self._last_links = cache(graph.last_links)
        self._way = cache(self._find_way)
        self._graph = graph
        super().__init__(graph.ranks, max((edge.bandwidth for edge in graph.edges), default=1.0), 0.0, **shared)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cards = {
            edge[:2]: Card(f"{edge.src} to {edge.dst}", edge.bandwidth, late=self.late, overhead=self.overhead)
            for edge in self._graph.edges
        }
        self.sends, self.receives = [*self._cards.values()], []

    @property
    def rates(self) -> None:
        """Return None: links of different rates have no common ones."""

    @override
    def path(self, src: int, dst: int) -> list[Card]:
        return [self._cards[edge[:2]] for edge in self._way(src, dst)]

    @override
    def delay(self, src: int, dst: int) -> float:
        return sum(edge.latency for edge in self._way(src, dst))

    def _find_way(self, src: int, dst: int) -> list[Edge]:
        way: list[Edge] = []
        while dst != src:
            way.append(self._last_links(src)[dst])
            dst = way[-1].src
        return way[::-1]
