"""The known rates of a transport's network, and links that hold its messages back."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

FAIR: Final = "fair"
IN_ORDER: Final = "in_order"


@dataclass(frozen=True)
class Rates:
    """The rates of a network, known beforehand: bandwidths in bytes per second, times of a message in seconds."""

    bandwidth: float
    latency: float
    overhead: float = 0.0  # for which a message occupies each of its two cards, whatever its length
    sharing: str = FAIR
    racks: int = 1
    rack_bandwidth: float = math.inf


@dataclass
class Held:
    """A message on its way from rank `src`. `happen` is called when it arrives; None: it has not been read yet."""

    src: int
    nbytes: int
    happen: Callable[[], None] | None
    arrives: float = math.inf


class Throttle(Protocol):
    """Holds the messages of one rank back, as a slower network would. Times are seconds of the transport's clock."""

    @property
    def rates(self) -> Rates | None:
        """The rates of that network; None: they do not suffice to predict the time of a message."""

    def leaves(self, nbytes: int, at: float) -> float:
        """Send a message from the time `at` on; return when its first byte leaves."""

    def seconds(self, nbytes: int) -> float:
        """Return how long a message occupies the sender."""

    def hold(self, src: int, nbytes: int, leaves: float, happen: Callable[[], None] | None) -> Held:
        """Hold a message of rank `src` back that `leaves` its sender at that time."""

    def follow(self, src: int, happen: Callable[[], None]) -> None:
        """Call a function when all messages held back from `src` have arrived: at once if there are none."""

    def forget(self, src: int) -> None:
        """Drop all that is held back from `src`."""

    def happen(self, until: float) -> bool:
        """Deliver everything that arrives until a time; return whether anything has."""

    def due(self, at: float) -> float:
        """Return in how many seconds `happen` is to be called again, if nothing new comes meanwhile."""
