"""Virtual time: ranks are coroutines of one process; one runs at a time, the one with the lowest clock first.

A rank that computes or sends moves its own clock only. When it looks for messages, every rank with an earlier clock
runs first, and the messages that have arrived until then are delivered. So the outcome is a function of the strategy,
the network and the seconds of each phase: the same bits every time.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

import torch
from greenlet import getcurrent, greenlet

from gradwire.virtual_time.network import Network

Event: TypeAlias = greenlet | Callable[[], None]


class World:
    """The next events, and whose turn it is.

    The coroutine that makes the world is the hub: it starts the others with `run`, which ends when nothing is left to
    happen. What a process has of its own, each coroutine has: torch's random state, gradient mode and autocast, unless
    they do not `compute`.
    """

    def __init__(self, network: Network, compute: bool = True) -> None:
        self.network = network
        self.time = 0.0  # of what happened last
        self.sharing = network.share(self)
        self._hub = getcurrent()
        self._switch = _switch if compute else greenlet.switch
        self._agenda: list[tuple[float, int, Event]] = []  # a heap: later events
        self._order = count()
        self._due: deque[Event] = deque()  # events of now, after those that the agenda has for this time

    def at(self, time: float, event: Event) -> None:
        """Schedule an event: at that time a coroutine continues, or a function is called."""
        if time <= self.time:
            self._due.append(event)
        else:
            heappush(self._agenda, (time, next(self._order), event))

    def start(self, run: Callable[[], object], at: float = 0.0) -> greenlet:
        """Return a new coroutine that calls `run` at that time, at the earliest as soon as it is its turn."""
        creator = getcurrent()

        def begin() -> None:
            self._switch(creator)
            run()

        coroutine = greenlet(begin, parent=self._hub)
        coroutine.switch()  # now, at the creator's depth: Python counts the frames from here
        self.at(at, coroutine)
        return coroutine

    def run(self) -> None:
        """On the hub: let everything happen."""
        while self._agenda or self._due:
            self._happen(self._take())

    def stop(self) -> None:
        """Drop all scheduled events, so that `run` ends."""
        self._agenda.clear()
        self._due.clear()

    def turn(self, clock: float) -> None:
        """Run the events that are due until `clock`, the time of the coroutine that calls this."""
        while True:
            time, event = self._first()
            if event is None or time > clock:
                return
            if isinstance(event, greenlet) and not event.dead:
                self.at(clock, getcurrent())
                self._switch(self._take())
                return  # the coroutine that switched back here has run the events due
            self._happen(self._take())

    def wait(self) -> None:
        """Suspend the calling coroutine until another has scheduled it and its time has come."""
        me, agenda, due = getcurrent(), self._agenda, self._due
        while agenda or due:
            if due and not (agenda and agenda[0][0] <= self.time):  # as _take and _happen, written here for speed
                event = due.popleft()
            else:
                self.time, _, event = heappop(agenda)
            if event is me:
                return
            if not isinstance(event, greenlet):
                event()
            elif not event.dead:
                self._switch(event)
                return
        self._switch(self._hub)  # which sees that nothing is left to happen

    def _first(self) -> tuple[float, Event | None]:
        """Return the next event, and its time; None if there is none."""
        agenda = self._agenda
        if self._due and not (agenda and agenda[0][0] <= self.time):
            return self.time, self._due[0]
        return (agenda[0][0], agenda[0][2]) if agenda else (self.time, None)

    def _take(self) -> Event:
        """Take the next event off the agenda: it is due."""
        agenda, due = self._agenda, self._due
        if due and not (agenda and agenda[0][0] <= self.time):
            return due.popleft()
        self.time, _, event = heappop(agenda)
        return event

    def _happen(self, event: Event) -> None:
        """Run an event; if it is a coroutine, this returns when that has returned control."""
        if not isinstance(event, greenlet):
            event()
        elif not event.dead:
            self._switch(event)


def _switch(coroutine: greenlet) -> None:
    """Switch to another coroutine; return when this one continues."""
    random, gradients = torch.default_generator.get_state(), torch.is_grad_enabled()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    autocast = [(device, torch.is_autocast_enabled(device)) for device in ("cpu", "cuda")]
    coroutine.switch()
    torch.default_generator.set_state(random)
    if of_gpus:
        torch.cuda.set_rng_state_all(of_gpus)
    if torch.is_grad_enabled() != gradients:
        torch.set_grad_enabled(gradients)
    for device, enabled in autocast:
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)
