"""Ranks as coroutines of one process, where a schedule decides the order of their messages.

Every rank runs until it needs a decision, or waits for a certain rank. The scheduler decides only when no rank can run
on: by then all that may have been sent has been sent. Decisions of two ranks commute, unless both touch a shared
vector, so one of two orders of the same decisions is enough. Two reductions leave out the other (Godefroid, 1996,
Partial-Order Methods for the Verification of Concurrent Systems; Flanagan & Godefroid, 2005, Dynamic partial-order
reduction). Other ranks decide before the first one only where one of them sends it a message that gives it one more
choice. Where others decide first, the choices of the ranks before them sleep until a decision that does not commute
with them wakes them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet

from gradwire.core.transports.inbox import ANY

TAKE, NOTHING, ACCESS, SEND, LOST = "take", "nothing", "access", "send", "lost"
Choice = tuple[str, int, str]
"""A choice of a rank, the other rank, and in words: take a message, find none, access a shared vector, send to a
rank that has died, learn of a death."""
Option = tuple[int, Choice]
"""A rank, and one of its choices."""
MOST_DECISIONS = 10_000
"""A run with more decisions is given up."""
Pick = Callable[[Sequence[Option]], int]
"""Which of several options happens, by its number. In the plain order it is always 0: the lowest rank goes first."""


class Sent(NamedTuple):
    """A message, with its sender's clock: how many events of each rank came before. Without a tag: a death."""

    src: int
    dst: int
    tag: str
    clock: tuple[int, ...]


class Question(NamedTuple):
    """The choices of a rank. It may become more by messages of `src` with one of `tags`; without tags, by all."""

    choices: Callable[[], list[Choice]]
    src: int = ANY
    tags: tuple[str, ...] | None = None


class Decision(NamedTuple):
    """The options, the picked one, and the counts before it: `n_sent` messages, `events` of the first."""

    options: list[Option]
    picked: int
    question: Question  # of the first that chooses
    n_sent: int
    events: int

    @property
    def words(self) -> str:
        """The decision as text."""
        (rank, choice), (first, plain) = self.options[self.picked], self.options[0]
        return f"rank {rank} {choice[2]}" + f"   (in the plain order rank {first} {plain[2]})" * (self.picked > 0)

    def may_be_later(self, sent: Sequence[Sent]) -> bool:
        """Return whether the first that chooses could choose more if others went first, by all that was `sent`."""
        (_, src, tags), rank = self.question, self.options[0][0]
        return tags is None or any(
            send.dst == rank and send.clock[rank] <= self.events and src in (send.src, ANY) and send.tag in (*tags, "")
            for send in sent[self.n_sent :]
        )


@dataclass(eq=False)
class Scheduler:
    """The ranks of one run. `taken` are its decisions, `sent` all messages.

    Not `reduced`: nothing sleeps. `dies`: a rank, and the number of the send before which it dies; `dead`: it has.
    `redundant`: the run was given up, for another one has the same decisions of each rank. `endless`: it was given up
    after MOST_DECISIONS.
    """

    pick: Pick
    reduced: bool = True
    dies: tuple[int, int] | None = None
    dead: int | None = None
    redundant = failed = over = endless = False

    def __post_init__(self) -> None:
        self.ranks: Sequence[Any] = []  # `Ordered`, or of a script
        self.taken: list[Decision] = []
        self.sent: list[Sent] = []
        self._ready: deque[Any] = deque()
        self._choosing: dict[int, Question] = {}
        self._asleep: dict[int, set[Choice]] = {}

    @property
    def happened(self) -> list[Option]:
        """The decisions."""
        return [decision.options[decision.picked] for decision in self.taken]

    @property
    def departures(self) -> int:
        """How many decisions were not those of the plain order."""
        return sum(decision.picked > 0 for decision in self.taken)

    def run(self, work: Callable[[Any], None]) -> None:
        """Run the work of each rank until all have ended, one has failed, or nothing more can happen."""
        self._hub = getcurrent()
        for rank in self.ranks:
            rank.coroutine = greenlet(partial(work, rank))
            rank.coroutine.rank = rank  # whose code runs
        self._ready.extend(self.ranks)
        try:
            while not self.failed and (self._ready or self._decide()):
                self._ready.popleft().coroutine.switch()
        finally:
            self.over = True
            for rank in self.ranks:
                rank.coroutine.throw()  # ends a rank that still waits

    def _decide(self) -> bool:
        """Let one of the ranks that choose go on; return whether one can."""
        options = [
            (rank, choice)
            for rank, question in sorted(self._choosing.items())
            for choice in question.choices()
            if choice not in self._asleep[rank]
        ]
        if not options or len(self.taken) >= MOST_DECISIONS:
            self.redundant = any(self._asleep.values())
            self.endless = bool(options) and not self.redundant
            return False
        picked, first = self.pick(options), options[0][0]
        events = self.ranks[first].clock[first]
        self.taken.append(Decision(options, picked, self._choosing[first], len(self.sent), events))
        rank, self._chosen = options[picked]
        for other, choice in options[:picked] if self.reduced else ():
            self._asleep[other].add(choice)
        if self._chosen[0] == ACCESS:
            for sleepers in self._asleep.values():
                sleepers -= {choice for choice in sleepers if choice[0] == ACCESS}
        del self._choosing[rank], self._asleep[rank]
        self._ready.append(self.ranks[rank])
        return True

    # Called by a rank

    def choose(self, rank: int, question: Question) -> Choice:
        """Suspend a rank until one of its choices is decided; return it."""
        self._choosing[rank], self._asleep[rank] = question, set()
        self.suspend()
        return self._chosen

    def suspend(self) -> None:
        """Suspend the calling rank until another calls `wake`."""
        gradients = torch.is_grad_enabled()
        self._hub.switch()
        if torch.is_grad_enabled() != gradients:
            torch.set_grad_enabled(gradients)

    def wake(self, rank: Any) -> None:
        """Let a suspended rank continue; one that is to die first of all, so that nothing comes before its death."""
        if self.dies and self.dies[0] == rank.rank:
            self._ready.appendleft(rank)
        else:
            self._ready.append(rank)
