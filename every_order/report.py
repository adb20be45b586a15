"""All orders of a case against all that must hold: the tally, and the first order in which something does not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tqdm import tqdm

from every_order.invariants import Holds, Invariant, chosen, staleness
from every_order.runs import Case, Run, run_once
from every_order.scheduler import Option
from every_order.search import Orders, bound, estimate, random_orders, repeat
from records.tables import aligned

ONE_RESULT = "all orders have one result, to the bit, but for what is dropped"
_SHOWN = 10  # lines of an order
_ESTIMATED_FROM = 100  # orders
DEPTH = 2  # of a mistake that random orders look for


@dataclass
class Counterexample:
    """An order in which something does not hold: what was decided, what does not hold, and what happens, in lines."""

    case: Case
    happened: list[Option]
    departures: int
    broken: str
    lines: list[str]

    def text(self) -> str:
        """Return it as at most ten lines, the last ones before it is seen."""
        left_out = len(self.lines) - _SHOWN
        told = [f"   ... {left_out} decisions in the plain order or before" for _ in range(left_out > 0)]
        told += [f"{i + 1:4}  {line}" for i, line in enumerate(self.lines) if i >= left_out]
        departures = f"{self.departures} departure{'s' * (self.departures != 1)} from the plain order"
        return "\n".join([f"an order with {departures} in which it does not:", *told, f"      {self.broken}"])


@dataclass
class Report:
    """What was found. `orders`: how many were run; `complete`: these are all.

    `held`: of each invariant, in how many orders it holds, and of how many. `results`: different models, to the bit.
    `estimated`: about how many orders there are, where not all were run, and `random` how many more were run at random,
    each of which finds a mistake of two decisions with probability `bound` at least (None: not known).
    """

    case: Case
    orders: int = 0
    complete: bool = False
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: int = 0
    stalest: int | None = None
    n_stalest: int = 0
    estimated: float | None = None
    random: int = 0
    bound: float | None = None
    counterexample: Counterexample | None = None

    def text(self) -> str:
        """Return it as lines."""
        orders = f"{self.orders} order{'s' * (self.orders != 1)}"
        how_many = f"{orders}, all of them" if self.complete else f"{orders}, not all"
        if self.estimated is not None:
            how_many += f": there are about {self.estimated:.2g}"
        lines = [f"{self.case}: {how_many}; {self.results} different result{'s' * (self.results != 1)}"]
        rows = [[says, f"holds in {held} of {of}"] for says, (held, of) in self.held.items()]
        if self.stalest is not None:
            rows.append(["the greatest staleness", f"{self.stalest}, reached in {self.n_stalest} of {self.orders}"])
        lines.append(aligned(rows, left=2))
        if self.random:
            lines.append(
                f"and {self.random} random orders, in which a mistake that needs {DEPTH} decisions is found with"
            )
            lines[-1] += f" probability {self.bound:.2g} each, or more" if self.bound else " no known probability"
        return "\n".join([*lines, *([self.counterexample.text()] if self.counterexample else [])])


class _Tally:
    """What the runs so far have shown."""

    def __init__(self, case: Case, invariants: Sequence[Invariant]) -> None:
        self._invariants = invariants
        self._determined = not case.strategy.traits.asynchronous
        self.held = {one.says: [0, 0] for one in invariants} | ({ONE_RESULT: [0, 0]} if self._determined else {})
        self.results = set[bytes]()
        self._by_dropped: dict[object, bytes] = {}
        self.n = self.n_stalest = 0
        self.stalest = -1
        self.first: tuple[list[Option], str] | None = None
        self.decided: list[Sequence[Sequence[Option]]] = []

    def take(self, run: Run) -> None:
        """Ask of a run all that must hold."""
        self.n += 1
        self.decided.append([options for options, _ in run.scheduler.taken])
        for one in self._invariants:
            if run.has_ended or not one.of_ended:
                self._count(one.says, run, one.holds(run))
        if run.has_ended and run.model is not None:
            bits = run.model.numpy().tobytes()
            self.results.add(bits)
            if self._determined:
                same = self._by_dropped.setdefault(tuple(run.dropped), bits) == bits
                self._count(ONE_RESULT, run, None if same else "the model has other bits than in an order before")
        found = staleness(run)
        self.n_stalest = self.n_stalest * (found <= self.stalest) + (found >= self.stalest)
        self.stalest = max(self.stalest, found)

    def _count(self, says: str, run: Run, broken: str | None) -> None:
        self.held[says][0] += broken is None
        self.held[says][1] += 1
        if broken is not None and self.first is None:
            self.first = run.happened, f"not so: {says}: {broken}"


def examine(
    case: Case,
    invariants: Iterable[tuple[str, Holds]] = (),
    at_most: int = 20_000,
    n_random: int = 1000,
    until_broken: bool = False,
    quiet: bool = True,
) -> Report:
    """Run a case in all orders, or `at_most` and then `n_random` random ones, and ask what must hold.

    `invariants`: more of these, each with what it says. `until_broken`: end with the first order in which one does not
    hold. `quiet`: no progress bar.
    """
    asked = [*chosen(case), *(Invariant(says, holds) for says, holds in invariants)]
    orders, begun = Orders(case, at_most), 0
    tally = _Tally(case, asked)
    with tqdm(unit="order", disable=quiet, leave=False) as bar:
        for run in orders:
            if orders.begun_anew != begun:
                begun, tally = orders.begun_anew, _Tally(case, asked)
            tally.take(run)
            bar.update()
            if until_broken and tally.first:
                break
        report = Report(case, tally.n, orders.complete, results=len(tally.results))
        if not orders.complete and not tally.first:
            k = max(map(len, tally.decided))
            report.random, report.bound = n_random, bound(tally.decided, len(case.roles), DEPTH)
            report.estimated = estimate(case, _ESTIMATED_FROM, case.seed)
            for run in islice(random_orders(case, case.seed, k, DEPTH), n_random):
                tally.take(run)
                bar.update()
    report.held = {says: (held, of) for says, (held, of) in tally.held.items()}
    if tally.stalest >= 0 and any(one.says.startswith("no gradient is staler") for one in asked):
        report.stalest, report.n_stalest = tally.stalest, tally.n_stalest
    if tally.first:
        report.counterexample = told(case, *tally.first)
    return report


def told(case: Case, happened: list[Option], broken: str) -> Counterexample:
    """Return an order with what happens in it."""
    lines: list[str] = []
    run = run_once(case, repeat(happened), reduced=False, tell=lines.append)
    return Counterexample(case, happened, run.departures, broken, lines)
