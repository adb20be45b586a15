"""Which orders are run: all of a case, those with the fewest departures from the plain order first; or random ones.

A run is repeated from its start with other decisions, for that is fast (about 4 ms). The first order that breaks
something is therefore one with the fewest departures that do (as in CHESS: Musuvathi & Qadeer, 2007, Iterative context
bounding for systematic testing of multithreaded programs).
"""

import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from every_order.runs import Case, Run, run_once
from every_order.scheduler import ACCESS, TAKE, Channel, Option, Pick

_TRIALS = 10


def follow(decisions: Sequence[int]) -> Pick:
    """Return what decides as these numbers say, and then in the plain order."""
    rest = iter(decisions)
    return lambda options: next(rest, 0)


def repeat(happened: Iterable[Option]) -> Pick:
    """Return what lets the same happen again, and then goes on in the plain order, whatever was left out then."""
    rest = iter(happened)
    return lambda options: options.index(next(rest, options[0]))


class Orders:
    """The orders of a case, iterated over as runs; at most so many. `complete`, afterwards: all were run."""

    def __init__(self, case: Case, at_most: int) -> None:
        self._case, self._at_most = case, at_most
        self.complete = False
        self._most = Counter[Channel]()
        for seed in range(_TRIALS):
            self._note(run_once(case, _at_random(random.Random(seed))))

    def _note(self, run: Run) -> bool:
        """Note how many messages there may be; return whether there are more than in the runs before."""
        before = self._most.total()
        self._most |= run.scheduler.counts
        return self._most.total() > before

    def __iter__(self) -> Iterator[Run]:
        seen = set[object]()
        while True:
            for run in self._all():
                if run is None:  # it begins anew
                    break
                if (key := _order(run)) not in seen:
                    seen.add(key)
                    yield run
            else:
                return

    def _all(self) -> Iterator[Run | None]:
        """Yield all runs; None: it must begin anew."""
        n, cut = 0, False
        now, later = deque[tuple[int, ...]]([()]), deque[tuple[int, ...]]()
        while now:
            prefix = now.popleft()
            run = run_once(self._case, follow(prefix), self._most)
            if self._note(run) and run.scheduler.left_out:
                yield None
                return
            taken = run.scheduler.taken
            for place in range(len(prefix), len(taken)):
                for other in range(1, len(taken[place][0])):
                    if n + 1 + len(now) + len(later) < self._at_most:
                        later.append((*(picked for _, picked in taken[:place]), other))
                    else:
                        cut = True
            if not run.scheduler.redundant:
                n += 1
                yield run
            if not now:
                now, later = later, now
        self.complete = not cut


def _order(run: Run) -> object:
    """Return the sequence of choices of each rank, and that of the accesses of all: what an order is."""
    happened = run.happened
    accesses = tuple(rank for rank, (kind, _) in happened if kind == ACCESS)
    return accesses, tuple(sorted(happened, key=lambda option: option[0]))


def _at_random(draw: random.Random) -> Pick:
    return lambda options: draw.randrange(len(options))


def random_orders(case: Case, n_decisions: int, depth: int) -> Iterator[Run]:
    """Yield random orders without end, by probabilistic concurrency testing (Burckhardt et al., 2010, PCT).

    Every rank has a random priority; what the first of them does happens first. At depth - 1 of the `n_decisions` the
    one whose turn it is becomes the last. A mistake that depth decisions of one rank make is found in one such order of
    n ranks with probability at least 1 / (n n_decisions^(depth - 1)).
    """
    draw = random.Random(case.seed)
    while True:
        priorities = draw.sample(range(len(case.roles)), len(case.roles))
        places = {draw.randrange(n_decisions) for _ in range(depth - 1)}
        yield run_once(case, _by_priority(priorities, places), reduced=False)


def _by_priority(priorities: list[int], places: set[int]) -> Pick:
    taken = 0

    def pick(options: Sequence[Option]) -> int:
        nonlocal taken
        goes_on = [peer if kind == TAKE else rank for rank, (kind, peer) in options]  # who sent, or who chooses
        best = min(range(len(options)), key=lambda i: priorities[goes_on[i]])
        if taken in places:
            priorities[goes_on[best]] = len(priorities) + taken
        taken += 1
        return best

    return pick


def bound(options: Iterable[Option], n_ranks: int, n_decisions: int, depth: int) -> float | None:
    """Return the probability that a random order finds a mistake; None where it is not known: several ranks choose."""
    options = set(options)
    if len({rank for rank, _ in options}) > 1 and any(kind != ACCESS for _, (kind, _) in options):
        return None
    return 1 / (n_ranks * n_decisions ** (depth - 1))


def estimate(case: Case, n: int) -> float:
    """Return about how many orders there are: the mean, over n random ones, of the product of their options.

    (Knuth, 1975, Estimating the efficiency of backtrack programs.)
    """
    draw, total = random.Random(case.seed), 0.0
    for _ in range(n):
        run = run_once(case, _at_random(draw))
        total += 0.0 if run.scheduler.redundant else math.prod(len(options) for options, _ in run.scheduler.taken)
    return total / n
