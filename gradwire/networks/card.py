"""One direction of a network card, or of a switch's port: how the messages that pass it share its bandwidth."""

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


@dataclass(slots=True)
class Card:
    """A card of `bandwidth` bytes a second, and the bytes that have passed it so far.

    A card either passes messages in order, by `take`, or shares its bandwidth among all that pass it, by `join`,
    `next_end` and `leave`. `due` is for whoever waits for `next_end`.
    """

    name: str
    bandwidth: float
    least: float = 0.0  # weight, by which it is shared where there is less
    late: float = 1.0  # weight of a flow that others are before; one that finds the card idle has 1
    overhead: float = 0.0  # seconds for which a message occupies it, whatever its length
    free: float = 0.0  # when the last byte of all messages so far has passed
    busy: float = 0.0  # seconds in which it would pass them one after the other
    nbytes: float = 0
    due: float = field(default=math.inf, compare=False)
    _alone: tuple[float, float, float, Any] | None = field(default=None, compare=False)  # end, begin, bytes of one
    _flows: list[tuple[float, int, float, Any]] = field(default_factory=list, compare=False)  # a heap, by their ends
    _joined: int = field(default=0, compare=False)  # flows so far: of two that end at once the first to join is first
    _served: float = field(default=0.0, compare=False)  # bytes for each unit of weight, of all time
    _weight: float = field(default=0.0, compare=False)  # of all flows
    _at: float = field(default=0.0, compare=False)  # when `_served` was right

    # In order

    def take(self, nbytes: float, first: float, last: float) -> tuple[float, float]:
        """Pass a message whose bytes come from `first` to `last`; return when its first and last byte leave."""
        seconds = self.overhead + nbytes / self.bandwidth
        start = max(first, self.free)
        end = max(start + seconds, last)
        self.free = end
        self.busy += seconds
        self.nbytes += nbytes
        return start, end

    # Fairly: weighted processor sharing, in the virtual time of Parekh and Gallager (A generalized processor sharing
    # approach to flow control, IEEE/ACM Transactions on Networking, 1993); one flow alone needs none

    def join(self, nbytes: float, at: float, flow: Any) -> float:
        """Let the bytes of `flow` pass from the time `at` on, with a share of the bandwidth: see `late`.

        Return when the first of the flows ends if none joins before.
        """
        self.nbytes += nbytes
        nbytes += self.overhead * self.bandwidth
        self.busy += nbytes / self.bandwidth
        if self._alone is None and not self._flows:
            end = at + nbytes * max(1.0, self.least) / self.bandwidth
            self._alone = end, at, nbytes, flow
            return end
        if self._alone is not None:
            _, self._at, first_nbytes, first = self._alone
            self._flows.append((first_nbytes, self._joined, 1.0, first))
            self._weight, self._served, self._alone = 1.0, 0.0, None
        self._served += (at - self._at) * self.bandwidth / max(self._weight, self.least)
        self._at = at
        self._weight += self.late
        self._joined += 1
        heappush(self._flows, (self._served + nbytes / self.late, self._joined, self.late, flow))
        return self.next_end()

    def next_end(self) -> float:
        """Return when the first of the flows ends if none joins before; infinity if there is none."""
        if self._alone is not None:
            return self._alone[0]
        if not self._flows:
            return math.inf
        return self._at + (self._flows[0][0] - self._served) * max(self._weight, self.least) / self.bandwidth

    def leave(self) -> Any:
        """Remove the flow that ends first, at that time, and return it."""
        if self._alone is not None:
            flow, self._alone = self._alone[3], None
            return flow
        end = self.next_end()
        served, _, weight, flow = heappop(self._flows)
        self._at, self._served = max(end, self._at), served
        self._weight -= weight
        return flow
