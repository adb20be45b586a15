"""How the messages of a network share its cards: fairly, as TCP does, or in order.

**Fair**: all messages that pass a card share its bandwidth, and each passes all cards of its path at once; it has
arrived `latency` seconds after it has passed the last card. Messages from one rank to another wait for each other, as
on one connection. A message that finds others at its receiver's card has a smaller weight there than one that finds
none, as a connection of TCP that starts where others fill the queue: with equal weights, ranks that take the same steps
would stay in lock-step, in which the two directions of a server's card never work at once.

**In order**: a card passes one message after the other, in the order in which they reach it, at its whole bandwidth,
and begins to pass one on while it still comes in (cut-through).
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from typing_extensions import override

from gradwire.networks.card import Card


class Agenda(Protocol):
    """The part of `World` that cards use: the time, and later events."""

    time: float

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Call `event` at a virtual time."""


@dataclass(slots=True, eq=False)
class Flow:
    """A message from one rank to another: the cards of its path, and the callbacks on its way.

    `left` is called with the time at which its last byte has passed the first card, `arrive` when it has arrived.
    """

    way: tuple[int, int]
    cards: Sequence[Card]
    nbytes: float
    left: Callable[[float], None] | None
    arrive: Callable[[], None]
    back: Sequence[Card] = ()  # which its acknowledgements pass
    passed: int = 0  # of all these cards


class Sharing(ABC):
    """The messages that are on their way. `delay(src, dst)`: their latency, in seconds."""

    def __init__(self, agenda: Agenda, delay: Callable[[int, int], float] = lambda src, dst: 0.0) -> None:
        self._agenda, self._delay = agenda, delay

    @abstractmethod
    def send(self, flow: Flow, at: float) -> None:
        """Send a message at a time that may be later than now."""


class InOrder(Sharing):
    """A card passes one message after the other."""

    @override
    def send(self, flow: Flow, at: float) -> None:
        start, end = flow.cards[0].take(flow.nbytes, at, at)
        if flow.left:
            flow.left(end)
        if start > self._agenda.time:
            self._agenda.at(start, partial(self._travel, flow, 1, start, end))
        else:
            self._travel(flow, 1, start, end)

    def _travel(self, flow: Flow, i: int, first: float, last: float) -> None:
        """Let a message, whose first byte is at its card `i` now, pass it and those behind it, and arrive."""
        while i < len(flow.cards):
            start, last = flow.cards[i].take(flow.nbytes, first, last)
            i += 1
            if start > first and i < len(flow.cards):
                self._agenda.at(start, partial(self._travel, flow, i, start, last))
                return
            first = start
        self._agenda.at(last + self._delay(*flow.way), flow.arrive)


class Fair(Sharing):
    """All messages that pass a card share it, by the weights that the card gives them."""

    def __init__(
        self, agenda: Agenda, delay: Callable[[int, int], float] = lambda src, dst: 0.0, acknowledged: float = 0.0
    ) -> None:
        super().__init__(agenda, delay)
        self._acknowledged = acknowledged  # of a message's bytes, those that pass the cards back
        self._ways: dict[tuple[int, int], deque[Flow] | None] = {}  # that are busy, and what waits for each

    @override
    def send(self, flow: Flow, at: float) -> None:
        if at > self._agenda.time:
            self._agenda.at(at, partial(self.send, flow, at))
            return
        way = flow.way
        if way not in self._ways:
            self._ways[way] = None
            self._begin(flow)
        elif (waiting := self._ways[way]) is None:
            self._ways[way] = deque((flow,))
        else:
            waiting.append(flow)

    def _begin(self, flow: Flow) -> None:
        """Let a message enter all its cards."""
        time = self._agenda.time
        new: list[Card] = []
        for cards, nbytes in ((flow.cards, flow.nbytes), (flow.back, flow.nbytes * self._acknowledged)):
            for card in cards:
                end = card.join(nbytes, time, flow)
                if end < card.due:
                    card.due = end
                    if new and new[-1].due != end:
                        self._agenda.at(new[-1].due, partial(self._look, new))
                        new = []
                    new.append(card)
        if new:
            self._agenda.at(new[-1].due, partial(self._look, new))

    def _look(self, cards: Sequence[Card]) -> None:
        """Let the messages leave that have passed one of these cards by now."""
        time = self._agenda.time
        for card in cards:
            if card.due > time:
                continue  # another look is planned
            while (end := card.next_end()) <= time:
                self._leave(card.leave(), card)
            card.due = end
            if end < math.inf:
                self._agenda.at(end, partial(self._look, (card,)))

    def _leave(self, flow: Flow, card: Card) -> None:
        if flow.left and card is flow.cards[0]:
            flow.left(self._agenda.time)
        flow.passed += 1
        if flow.passed < len(flow.cards) + len(flow.back):
            return
        self._agenda.at(self._agenda.time + self._delay(*flow.way), flow.arrive)
        waiting = self._ways[flow.way]
        if waiting:
            self._begin(waiting.popleft())
        else:
            del self._ways[flow.way]


class Cores:
    """The cores of one machine, which computing and messages share: each has one, or its part of them all.

    A message takes a core where it is sent, and one where it is received, for `copying` seconds a byte, while it passes
    the cards.
    """

    def __init__(self, fair: Fair, cores: int, copying: float) -> None:
        self._fair, self._unit = fair, copying or 1.0  # of the card's bytes, in seconds of a core
        self._card = Card("cores", cores / self._unit, least=cores)
        self.copies = (self._card, self._card) if copying else ()
        """What a message passes beside the cards of its path."""

    def compute(self, rank: int, seconds: float, at: float, done: Callable[[float], None]) -> None:
        """Compute on a core for `seconds`, from the time `at` on, which may be later than now; then call `done`."""
        self._fair.send(Flow((rank, rank), (self._card,), seconds / self._unit, done, lambda: None), at)
