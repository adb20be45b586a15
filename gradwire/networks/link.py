"""A network card in numbers under a real transport: messages are held back until they would have arrived.

The model is that of `virtual_time/network.py`, in order, with all ranks at one switch: a message passes the card of its
sender, then that of its receiver, each shared by all the connections of that rank, and is there `latency` seconds after
its last byte. Its sender says when it begins to leave; the receiver works out the rest, in the order in which messages
reach its card.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from gradwire.core.transports.throttle import IN_ORDER, Held, Rates
from gradwire.networks.card import Card


@dataclass
class Link:
    """One rank's card: `bandwidth` in bytes a second, for each direction, and `latency` in seconds.

    Times are seconds of a clock that all ranks share.
    """

    bandwidth: float
    latency: float
    _sends: Card = field(init=False)
    _receives: Card = field(init=False)
    _coming: list[tuple[float, int, Held]] = field(init=False, default_factory=list)  # a heap, by when they leave
    _passed: deque[Held] = field(init=False, default_factory=deque)  # whose time on this card is known, in order
    _order: int = field(init=False, default=0)
    _held: Counter[int] = field(init=False, default_factory=Counter)  # how many, by source
    _last: dict[int, float] = field(init=False, default_factory=dict)  # when the last of a source leaves

    def __post_init__(self) -> None:
        self._sends, self._receives = Card("sends", self.bandwidth), Card("receives", self.bandwidth)

    @property
    def rates(self) -> Rates | None:
        """The rates of the network; None unless both bandwidth and latency are set."""
        known = self.latency > 0 and self.bandwidth < math.inf
        return Rates(self.bandwidth, self.latency, sharing=IN_ORDER) if known else None

    def leaves(self, nbytes: int, at: float) -> float:
        """Pass a message of this rank through its card; return when its first byte leaves."""
        return self._sends.take(nbytes, at, at)[0]

    def seconds(self, nbytes: int) -> float:
        """Return how long a message occupies a card."""
        return nbytes / self.bandwidth

    def hold(self, src: int, nbytes: int, leaves: float, happen: Callable[[], None] | None) -> Held:
        """Hold a message back that `leaves` its sender's card at that time."""
        held = Held(src, nbytes, happen)
        leaves = self._last[src] = max(leaves, self._last.get(src, leaves))  # none overtakes another of its source
        self._order += 1
        heappush(self._coming, (leaves, self._order, held))
        self._held[src] += 1
        return held

    def follow(self, src: int, happen: Callable[[], None]) -> None:
        """Call a function when all messages held back from `src` have arrived: at once if there are none."""
        if self._held[src]:
            self.hold(src, 0, self._last[src], happen)
        else:
            happen()

    def forget(self, src: int) -> None:
        """Drop all that is held back from `src`."""
        self._coming = [entry for entry in self._coming if entry[2].src != src]
        heapify(self._coming)
        self._passed = deque(held for held in self._passed if held.src != src)
        self._receives.free = self._passed[-1].arrives - self.latency if self._passed else 0.0
        self._held[src] = 0
        self._last.pop(src, None)

    def happen(self, until: float) -> bool:
        """Deliver everything that arrives until a time; return whether anything has."""
        while self._coming and self._coming[0][0] <= until:
            leaves, _, held = heappop(self._coming)
            _, end = self._receives.take(held.nbytes, leaves, leaves + self.seconds(held.nbytes))
            held.arrives = end + self.latency
            self._passed.append(held)
        happened = False
        while self._passed and self._passed[0].arrives <= until and self._passed[0].happen:
            held = self._passed.popleft()
            self._held[held.src] -= 1
            happened = True
            assert held.happen is not None
            held.happen()
        return happened

    def due(self, at: float) -> float:
        """Return in how many seconds `happen` is to be called again, if nothing new comes meanwhile."""
        first = self._passed[0].arrives if self._passed and self._passed[0].happen else math.inf
        if self._coming:
            first = min(first, self._coming[0][0])
        return max(0.0, first - at)
