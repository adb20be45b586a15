"""Which orders are run: all of a case, those with the fewest departures from the plain order first; or random ones.

A run is repeated from its start with other decisions, for that is fast (about 4 ms). The first order that breaks
something is one with the fewest departures that do (as in CHESS: Musuvathi & Qadeer, 2007, Iterative context bounding
for systematic testing of multithreaded programs); where several ranks choose, of those that the reductions leave.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from gradwire.core.records.errors import UsageError
from gradwire.every_order.runs import Case, Run, run_once
from gradwire.every_order.scheduler import ACCESS, TAKE, Option, Pick, Scheduler

_FAIR_FROM = 1000  # decisions of a run in the plain order


def follow(decisions: Sequence[int]) -> Pick:
    """Return what decides as these numbers say, and then in the plain order, which is fair in the end."""
    rest = iter(decisions)
    return fair_from(_FAIR_FROM, lambda options: next(rest, 0))


def fair_from(n: int, pick: Pick) -> Pick:
    """Return what decides as `pick` n times, and then always for the option that was not picked for longest.

    Else a rank that looks for a message again and again could keep its sender from going on for ever.
    """
    last: dict[Option, int] = {}
    numbers = count()

    def fair(options: Sequence[Option]) -> int:
        number = next(numbers)
        picked = pick(options) if number < n else min(range(len(options)), key=lambda i: last.get(options[i], -1))
        last[options[picked]] = number
        return picked

    return fair


def repeat(happened: Iterable[Option]) -> Pick:
    """Return what lets the same happen again, and then goes on in the plain order. It raises UsageError."""
    rest = iter(happened)

    def pick(options: Sequence[Option]) -> int:
        option = next(rest, options[0])
        if option not in options:
            never = f"rank {option[0]} never {option[1][2]}"
            raise UsageError(f"--replay: this order cannot be followed any more, for {never}")
        return options.index(option)

    return pick


R = TypeVar("R", bound=Scheduler)


class _TooLong(Exception):
    """A random run has many more decisions than the plain one, for what sleeps in it is never woken."""


@dataclass
class Orders(Generic[R]):
    """The orders in which `once` can run, iterated over as runs; at most `at_most`.

    `complete`, afterwards: all were run.
    """

    once: Callable[[Pick], R]
    at_most: int
    complete: bool = False

    def __iter__(self) -> Iterator[R]:
        n, cut = 0, False
        known: set[tuple[int, ...]] = {()}
        waiting: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]  # a heap: departures, a number, decisions
        while waiting:
            run = self.once(follow(heappop(waiting)[-1]))
            if not run.redundant:
                n += 1
                yield run
            for others in _others(run):
                if others in known:
                    continue
                if n + len(waiting) >= self.at_most:
                    cut = True
                    break
                known.add(others)
                heappush(waiting, (sum(map(bool, others)), len(known), others))
        self.complete = not cut


def _others(run: Scheduler) -> Iterator[tuple[int, ...]]:
    """Yield how other orders begin that a run has shown, up to their last departure: see `scheduler.py`."""
    picks: list[int] = []
    for decision in run.taken:
        first = decision.options[0][0]
        later = len(decision.options) > 1 and decision.may_be_later(run.sent)
        for other, (rank, _) in enumerate(decision.options):
            if other and (rank == first or later):
                yield (*picks, other)
        picks.append(decision.picked)


def random_orders(case: Case, n_decisions: int, depth: int) -> Iterator[Run]:
    """Yield random orders without end, by probabilistic concurrency testing (Burckhardt et al., 2010, PCT).

    Every rank has a random priority; the first rank acts first. At depth - 1 of the `n_decisions` the
    one whose turn it is becomes the last. After twice `n_decisions` all take turns. A mistake that depth decisions of
    one rank make is found in one such order of n ranks with probability at least 1 / (n n_decisions^(depth - 1)).
    """
    draw = random.Random(case.seed)
    while True:
        priorities = draw.sample(range(len(case.roles)), len(case.roles))
        places = {draw.randrange(n_decisions) for _ in range(depth - 1)}
        yield run_once(case, fair_from(2 * n_decisions, _by_priority(priorities, places)), reduced=False)


def _by_priority(priorities: list[int], places: set[int]) -> Pick:
    numbers = count()

    def pick(options: Sequence[Option]) -> int:
        goes_on = [peer if kind == TAKE else rank for rank, (kind, peer, _) in options]  # sender, or chooser
        best = min(range(len(options)), key=lambda i: priorities[goes_on[i]])
        if (n := next(numbers)) in places:
            priorities[goes_on[best]] = len(priorities) + n
        return best

    return pick


def estimate(case: Case, n: int, depth: int) -> tuple[float, int, float | None]:
    """Return by n random orders about how many there are, the most decisions of one, and the chance in `random_orders`.

    How many: the mean of the product of their options (Knuth, 1975, Estimating the efficiency of backtrack programs).
    The chance that a random order finds a mistake of `depth` decisions is not known where several ranks choose: None.
    """
    draw = random.Random(case.seed)
    plain = run_once(case, follow(()))
    most_decisions = 50 + 4 * len(plain.taken)

    def once() -> Run | None:
        numbers = count()

        def pick(options: Sequence[Option]) -> int:
            if next(numbers) > most_decisions:
                raise _TooLong
            return draw.randrange(len(options))

        try:
            return run_once(case, pick)
        except _TooLong:
            return None

    runs = [plain, *(run for _ in range(n) if (run := once()) and not run.redundant)]
    how_many = sum(math.prod(len(decision.options) for decision in run.taken) for run in runs[1:]) / n
    most = max(len(run.taken) for run in runs)
    options = {option for run in runs for decision in run.taken for option in decision.options}
    if len({rank for rank, _ in options}) > 1 and any(kind != ACCESS for _, (kind, *_) in options):
        return how_many, most, None
    return how_many, most, 1 / (len(case.roles) * most ** (depth - 1))
