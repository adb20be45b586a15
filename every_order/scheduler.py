"""What happens next, where disorder may come in: ranks are coroutines of one process, and a schedule decides.

Every rank runs until it needs a decision, or waits for a certain rank. Only when none can run on is something decided:
then whatever may have been sent by now has been sent. What two ranks decide commutes, unless both touch a shared
vector. So of two orders of the same decisions one is enough, and sleep sets leave out the other (Godefroid, 1996,
Partial-Order Methods for the Verification of Concurrent Systems, chapter 5): once the decisions of a rank have been
tried, they sleep in the branches where others go first, until something wakes them that does not commute with them.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from greenlet import getcurrent, greenlet

from transports.inbox import ANY, named

if TYPE_CHECKING:
    from every_order.transport import InPlace, Ordered

TAKE, NOTHING, ACCESS, SEND, LOST = "take", "find nothing", "access", "send", "learn of the death"
Choice = tuple[str, int]
"""What a rank may do: take the next message of a rank, find nothing, access a shared vector, send to a rank that has
died, learn of the death of a rank."""
Option = tuple[int, Choice]
Channel = tuple[int, int, str]
"""A sender, a receiver and a tag."""
Pick = Callable[[Sequence[Option]], int]
"""Which of several options happens, by its number. 0 is the plain order."""


@dataclass(frozen=True)
class Question:
    """What a rank may choose from, which may become more while it waits: by messages of `src` with one of `tags`."""

    choices: Callable[[], list[Choice]]
    src: int = ANY
    tags: tuple[str, ...] = ()
    does: str = "goes on"  # what else a choice lets it do


class Scheduler:
    """The ranks of one run. `taken` are its decisions: the options of each, and which was picked.

    `redundant`: the run was given up, for another one has the same decisions of each rank. `left_out`: by what `most`
    says (see `_may_wake`), others were not let go first. Not `reduced`: nothing sleeps. `dies`: a rank, and the number
    of the send before which it dies; `dead`: it has. `copied`: messages whose waits ended before they were taken.
    """

    def __init__(
        self,
        pick: Pick,
        most: Mapping[Channel, int] | None = None,
        reduced: bool = True,
        tell: Callable[[str], None] | None = None,
        dies: tuple[int, int] | None = None,
    ) -> None:
        self._pick, self._most, self._reduced, self.tell, self.dies = pick, most, reduced, tell, dies
        self.ranks: list[Ordered] = []
        self.shared: dict[str, torch.Tensor] = {}
        self.taken: list[tuple[list[Option], int]] = []
        self.redundant = self.left_out = self.failed = self.over = False
        self.dead: int | None = None
        self.copied: list[InPlace] = []
        self.counts = Counter[Channel]()
        self._ready: deque[Ordered] = deque()
        self._choosing: dict[int, Question] = {}
        self._asleep: dict[int, set[Choice]] = {}

    def run(self, work: Callable[["Ordered"], None]) -> None:
        """Run the work of each rank until all have ended, one has failed, or nothing more can happen."""
        self._hub = getcurrent()
        for rank in self.ranks:
            rank.coroutine = greenlet(partial(work, rank))
        self._ready.extend(self.ranks)
        try:
            while not self.failed and (self._ready or self._decide()):
                self._ready.popleft().coroutine.switch()
        finally:
            self.over = True
            for rank in self.ranks:
                rank.coroutine.throw()  # ends who still waits

    def _decide(self) -> bool:
        """Let one of the ranks that choose go on; return whether one can."""
        options: list[Option] = []
        waiting = sorted(self._choosing.items())
        for rank, question in waiting:
            choices, asleep = question.choices(), self._asleep[rank]
            awake = [(rank, choice) for choice in choices if choice not in asleep]
            options += awake
            if choices and not self._may_wake(rank, question):
                self.left_out |= rank != waiting[-1][0]
                if not awake:
                    options.clear()
                break
        if not options:
            self.redundant = any(self._asleep.values())
            return False
        picked = self._pick(options)
        self.taken.append((options, picked))
        rank, self._chosen = options[picked]
        if self.tell:
            plain = f"   (in the plain order {self._describe(options[0])})" if picked else ""
            self.tell(self._describe(options[picked]) + plain)
        for other, choice in options[:picked] if self._reduced else ():
            self._asleep[other].add(choice)
        if self._chosen[0] == ACCESS:
            for sleepers in self._asleep.values():
                sleepers.discard(self._chosen)
        del self._choosing[rank], self._asleep[rank]
        self._ready.append(self.ranks[rank])
        return True

    def _describe(self, option: Option) -> str:
        rank, (kind, peer) = option
        question = self._choosing[rank]
        if kind == TAKE:
            return f"rank {rank} takes {self.ranks[rank].next_tag(peer, question.tags)!r} of rank {peer}"
        if kind == LOST:
            return f"rank {rank} learns that rank {peer} is dead"
        return f"rank {rank} " + (f"finds no {named(question.tags)}" if kind == NOTHING else question.does)

    def _may_wake(self, rank: int, question: Question) -> bool:
        """Return whether a rank, asleep, can yet be given another choice, so that it is worth letting others go first.

        In every run a rank has sent what it sends in one where the sleeper went first. So `most`, the messages from
        rank to rank of each tag in the runs so far, says what may come; if a run has more, the search begins anew.
        """
        may_die = self.dies and self.dead is None and question.src in (self.dies[0], ANY)
        if self._most is None or not question.tags or may_die:
            return True
        return any(
            n > self.counts[src, dst, tag]
            for (src, dst, tag), n in self._most.items()
            if dst == rank and tag in question.tags and question.src in (src, ANY)
        )

    # What a rank calls

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

    def wake(self, *ranks: "Ordered") -> None:
        """Let suspended ranks continue; one that is to die first of all, so that nothing comes before its death."""
        for rank in ranks:
            if self.dies and self.dies[0] == rank.rank:
                self._ready.appendleft(rank)
            else:
                self._ready.append(rank)

    def bury(self, dead: "Ordered") -> None:
        """Let the ranks that wait for a dead one learn of it."""
        self.dead = dead.rank
        for rank in self.ranks:
            rank.wake(dead.rank)
