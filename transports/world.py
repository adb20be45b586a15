"""Virtual time: ranks as coroutines of one process, of which one runs at a time, the one with the lowest clock first.

A rank that computes or sends moves its own clock only. When it looks for messages, every rank with an earlier clock
has its turn before, and what has arrived until then is delivered. So the outcome is a function of the strategy, the
network and the seconds of each phase: the same bits every time.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

import torch
from greenlet import getcurrent, greenlet

from transports.network import Network

Event: TypeAlias = greenlet | Callable[[], None]


class World:
    """What happens next, and whose turn it is.

    The coroutine that makes the world is the hub: it starts the others with `run`, which ends when nothing is left to
    happen. What a process has of its own, each coroutine has: torch's random state and gradient mode.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.time = 0.0  # of what happened last
        self._hub = getcurrent()
        self._agenda: list[tuple[float, int, Event]] = []  # a heap
        self._order = count()

    def at(self, time: float, event: Event) -> None:
        """Have something happen at a time: a coroutine continues, or a function is called."""
        heappush(self._agenda, (time, next(self._order), event))

    def start(self, run: Callable[[], object]) -> greenlet:
        """Return a new coroutine that calls `run` as soon as it is its turn."""
        creator = getcurrent()

        def begin() -> None:
            _switch(creator)
            run()

        coroutine = greenlet(begin, parent=self._hub)
        coroutine.switch()  # now, at the creator's depth: Python counts the frames from here
        self.at(self.time, coroutine)
        return coroutine

    def run(self) -> None:
        """On the hub: let everything happen."""
        while self._agenda:
            self._next()

    def stop(self) -> None:
        """Have nothing more happen: `run` ends."""
        self._agenda.clear()

    def turn(self, clock: float) -> None:
        """Let happen what is due until `clock`, that of the coroutine that calls this."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= clock:
            if isinstance(agenda[0][2], greenlet):
                self.at(clock, getcurrent())
                self._next()
                return  # who has switched back here has let happen what was due
            self._next()

    def wait(self) -> None:
        """Let the others continue, until somebody has put the calling coroutine on the agenda and its time has come."""
        me = getcurrent()
        while self._agenda:
            if self._agenda[0][2] is me:
                self.time = heappop(self._agenda)[0]
                return
            if self._next():
                return
        _switch(self._hub)  # which sees that nothing is left to happen

    def _next(self) -> bool:
        """Let the next thing happen; return whether it was a coroutine, which has given control back meanwhile."""
        self.time, _, event = heappop(self._agenda)
        if not isinstance(event, greenlet):
            event()
            return False
        if event.dead:
            return False
        _switch(event)
        return True


def _switch(coroutine: greenlet) -> None:
    """Let another coroutine continue; return when this one is to."""
    random, gradients = torch.default_generator.get_state(), torch.is_grad_enabled()
    coroutine.switch()
    torch.default_generator.set_state(random)
    if torch.is_grad_enabled() != gradients:
        torch.set_grad_enabled(gradients)
