"""All orders of a case against all that must hold: the tally, and the first order in which something does not."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice
from typing import Generic

from tqdm import tqdm

from gradwire.core.records.errors import UsageError
from gradwire.core.records.tables import aligned
from gradwire.core.strategy.traits import NOTHING
from gradwire.core.training.progress import REPORTER
from gradwire.every_order.invariants import WEIGHED, Holds, ask, chosen, staleness, stalest, weight_of
from gradwire.every_order.runs import Case, Run, counted, run_once
from gradwire.every_order.scheduler import Option
from gradwire.every_order.search import Orders, R, estimate, random_orders, repeat

ONE_RESULT = "all orders have one result, to the bit, but for what is dropped"
DEPTH = 2  # of a mistake that random orders look for
_ESTIMATED_FROM = 100  # orders


@dataclass
class Counterexample(Generic[R]):
    """The run of an order in which something does not hold, and what that is."""

    run: R
    broken: str

    def text(self, most: int = 10) -> str:
        """Format as text; of the trace, only the last `most` decisions."""
        run, told = self.run, [f"{i + 1:4}  {decision.words}" for i, decision in enumerate(self.run.taken)]
        dies = " in which rank {} dies before its send {}".format(*run.dies) if run.dies else ""
        if len(told) > most:
            told[:-most] = [f"   ... {len(told) - most} decisions"]
        first = f"an order with {counted(run.departures, 'departure')} from the plain order{dies}:"
        return "\n".join([first, *told, f"      not so: {self.broken}"])


@dataclass
class Report:
    """The result. `orders`: how many were run; `complete`: these are all; with `deaths`, `with_death` have one.

    `held`: for each invariant, in how many orders it holds, and in how many it was checked. `results`: the different
    models, to the bit. `stalest`: the greatest staleness, and in how many orders it is reached. `estimated`: about how
    many orders there are, where not all were run (0: not known), and `random`: how many more were run at random; each
    finds a mistake of two decisions with probability `bound` at least (None: not known).
    """

    case: Case
    orders: int = 0
    deaths: int = 0
    with_death: int = 0
    complete: bool = True
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: set[bytes] = field(default_factory=set)
    stalest: tuple[int, int] = (-1, 0)
    estimated: float | None = None
    random: int = 0
    bound: float | None = None
    counterexample: Counterexample[Run] | None = None
    _by_dropped: dict[object, bytes] = field(default_factory=dict)

    def text(self) -> str:
        """Return it as lines."""
        how_many = f"{counted(self.orders - self.random, 'order')}, " + ("all of them" if self.complete else "not all")
        how_many += f" of about {self.estimated:.2g}" if self.estimated else ""
        how_many += f", {self.with_death} of them with a death" if self.with_death else ""
        how_many += ", and no death was tried" if self.deaths and not self.with_death else ""
        rows = [[says, f"holds in {held} of {of}"] for says, (held, of) in self.held.items()]
        rows += [[WEIGHED, f"not asked: {why}"]] if isinstance(why := weight_of(self.case), str) else []
        if stalest(self.case) is not None:
            rows.append(["the greatest staleness", "{}, reached in {} of {}".format(*self.stalest, self.orders)])
        lines = [f"{self.case}: {how_many}; {counted(len(self.results), 'different result')}", aligned(rows, left=2)]
        if self.random:
            chance = f"at least {self.bound:.2g} each" if self.bound else "not known, for several ranks choose"
            lines.append(f"and {self.random} random orders; the chance of a mistake of {DEPTH} decisions is {chance}")
        return "\n".join([*lines, *([self.counterexample.text()] if self.counterexample else [])])

    def take(self, run: Run, invariants: dict[str, Holds]) -> None:
        """Ask of a run all that must hold."""
        self.orders += 1
        self.with_death += run.dead is not None
        asked = ask(run, invariants)
        if run.has_ended and run.model is not None:
            bits = run.model.numpy().tobytes()
            self.results.add(bits)
            if not run.case.strategy.traits.asynchronous and not run.case.dies:
                same = self._by_dropped.setdefault(tuple(run.dropped), bits) == bits
                asked[ONE_RESULT] = None if same else "the model has other bits than in an order before"
        for says, broken in asked.items():
            held, of = self.held.get(says, (0, 0))
            self.held[says] = held + (broken is None), of + 1
            if broken is not None and self.counterexample is None:
                again = run_once(run.case, repeat(run.happened), reduced=False)
                self.counterexample = Counterexample(again, f"{says}: {broken}")
        found, (most, n) = staleness(run), self.stalest
        self.stalest = (found, 1) if found > most else (most, n + (found == most))


def examine(
    case: Case,
    invariants: Iterable[tuple[str, Holds]] = (),
    at_most: int = 20_000,
    random: int = 1000,
    deaths: int = 0,
    until_broken: bool = False,
    quiet: bool = True,
) -> Report:
    """Run a case in all orders, or `at_most` and then `random` random ones, and ask what must hold.

    `invariants`: more of these, each with what it says. `deaths`: 1 for all orders with the death of one rank too.
    `until_broken`: end with the first order in which something does not hold. `quiet`: no progress bar.
    """
    report = Report(case, deaths=deaths)
    with ExitStack() as at_end, tqdm(unit="order", leave=False, disable=quiet) as bar:
        at_end.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(20_000, 50, 1000)  # each run leaves a little garbage in cycles
        for variant in chain([case], _with_deaths(report) if deaths else ()):
            if variant.dies and (report.orders >= at_most or (until_broken and report.counterexample)):
                report.complete = False
                break
            asked = chosen(variant) | dict(invariants)
            orders = Orders(partial(run_once, variant), at_most - report.orders)
            for run in orders:
                if variant.dies and run.dead is None:
                    continue  # it is among the orders without a death
                if not report.orders:
                    _check_sends(run)
                report.take(run, asked)
                bar.update()
                if until_broken and report.counterexample:
                    break
            report.complete &= orders.complete
            if random and not (variant.dies or orders.complete or report.counterexample):
                report.random = random
                report.estimated, most, report.bound = estimate(variant, _ESTIMATED_FROM, DEPTH)
                for run in islice(random_orders(variant, most, DEPTH), random):
                    report.take(run, asked)
                    bar.update()
    return report


def _check_sends(run: Run) -> None:
    """Raise UsageError if a strategy that sends something has sent nothing between start and finish."""
    case = run.case
    silent = run.has_ended and not run.sent_in_steps and len(case.roles) > 1
    if silent and case.strategy.cost().worker != NOTHING:
        raise UsageError(
            f"--steps {case.steps}: so few that {case.strategy.name} sends nothing between start and finish; take "
            f"{2 * case.strategy.period} for two of its periods"
        )


def _with_deaths(report: Report) -> Iterator[Case]:
    """Yield the case with each death: of workers, if the others go on (rank 0 reports, so it lives); else of any rank.

    A rank dies before each of its sends, until one that it makes in no order.
    """
    case = report.case
    for k, role in enumerate(case.roles):
        if case.strategy.traits.workers_may_die and (role != "worker" or k == REPORTER):
            continue
        for place in count(1):
            before = report.with_death
            yield replace(case, dies=(k, place))
            if report.with_death == before:
                break


def ask_again(case: Case, happened: list[Option], broken: str) -> str:
    """Return a saved order as lines, and what does not hold in it now."""
    run = run_once(case, repeat(happened), reduced=False)
    now = (f"{says}: {why}" for says, why in ask(run, chosen(case)).items() if why is not None)
    then = f"{broken} (so it was found; what is asked of one run of every strategy holds)"
    return Counterexample(run, next(now, then)).text()
