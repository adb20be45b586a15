"""A script of the user's with torch.distributed, run in every order of its messages: what holds in all of them.

A result is what the ranks print, and the parameters of every optimizer that has taken a step.
"""

import hashlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from every_order.runs import counted
from every_order.scheduler import Pick, Scheduler
from every_order.search import Orders, repeat
from records.tables import aligned
from torch_scripts.collectives import Plan, plans
from torch_scripts.ordered import InOrders, OrderedRank
from torch_scripts.replaced import replaced
from torch_scripts.script import Program, Script, ranks_alone
from torch_scripts.threads import here
from transports.messages import as_vector

WAITS, FITS, READ, SAME = (
    "no rank waits for ever", "calls of ranks fit together", "every message is received", "all orders have one result",
)  # fmt: skip


@dataclass
class ScriptRun:
    """One run: what was decided, what does not hold, and its result."""

    scheduler: Scheduler
    broken: dict[str, str] = field(default_factory=dict)
    result: str = ""


def run_once(
    script: Script, n: int, seed: int, plans: dict[str, Plan], pick: Pick, tell: Callable[[str], None] | None = None
) -> ScriptRun:
    """Run the script once, in the order that `pick` decides; inside of `ranks_alone`."""
    script.forget()
    scheduler = Scheduler(pick, reduced=tell is None, tell=tell)
    ranks = [OrderedRank(i, n) for i in range(n)]
    scheduler.ranks = ranks  # type: ignore[assignment]
    engine, run = InOrders(scheduler, ranks, plans), ScriptRun(scheduler)

    def output(rank: int, to: object) -> io.StringIO:
        return ranks[rank].output if to is sys.stdout else io.StringIO()

    program = Program(script, ranks, engine, seed, output)

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if (mine := here()) is not None:
            ranks[mine.rank].parameters.update((id(p), p) for group in optimizer.param_groups for p in group["params"])

    with replaced({}, n):
        hook = register_optimizer_step_post_hook(keep)
        try:
            scheduler.run(program.live)  # type: ignore[arg-type]
        finally:
            hook.remove()
            program.end()
    if program.failure:
        run.broken[FITS] = str(program.failure)
    elif waits := program.deadlock(engine.calls.reason):
        run.broken[WAITS] = waits
    else:
        run.result = _digest(ranks)
        if unread := engine.calls.unread():
            run.broken[READ] = "; ".join(unread)
    return run


def _digest(ranks: Sequence[OrderedRank]) -> str:
    digest = hashlib.sha256()
    for rank in ranks:
        digest.update(rank.output.getvalue().encode())
        for p in rank.parameters.values():
            digest.update(as_vector(p).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass
class ScriptReport:
    """What holds in how many orders of a script. `complete`: these are all orders of it.

    `broken` says what does not hold, and `shortest` the first order in which it does not, as lines.
    """

    orders: int = 0
    complete: bool = True
    held: dict[str, int] = field(default_factory=lambda: dict.fromkeys((WAITS, FITS, READ, SAME), 0))
    results: set[str] = field(default_factory=set)
    broken: str = ""
    shortest: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """Return it as lines."""
        size = "all of them" if self.complete else "not all"
        rows = [[says, f"holds in {held} of {self.orders}"] for says, held in self.held.items()]
        results = counted(len(self.results), "different result")
        first = f"{name}: {counted(self.orders, 'order')}, {size}; {results}"
        return "\n".join([first, aligned(rows, left=2), *self.shortest])


def examine(
    script: Script, n: int, seed: int = 0, at_most: int = 20_000, bar: Callable[[], object] = lambda: None
) -> ScriptReport:
    """Run the script in all orders, or so many; `bar` is called after each. Raises RunFailed."""
    report, first = ScriptReport(), ""
    with ranks_alone(script):
        once = partial(run_once, script, n, seed, plans("ring"))
        orders = Orders(once, at_most)
        for run in orders:
            report.orders += 1
            bar()
            if run.result:
                first = first or run.result
                report.results.add(run.result)
                if run.result != first:
                    run.broken[SAME] = "its result differs from that of an order before"
            for says in report.held:
                report.held[says] += says not in run.broken
            if run.broken and not report.broken:
                report.broken = "; ".join(f"{says}: {why}" for says, why in run.broken.items())
                report.shortest = list(_told(once, run, report.broken))
        report.complete = orders.complete
    return report


def _told(once: Callable[..., ScriptRun], run: ScriptRun, broken: str) -> Iterator[str]:
    """Yield an order in words."""
    picks = [decision.options[decision.picked] for decision in run.scheduler.taken]
    departures = sum(bool(decision.picked) for decision in run.scheduler.taken)
    lines: list[str] = []
    once(repeat(picks), lines.append)
    yield f"an order with {counted(departures, 'departure')} from the plain order:"
    yield from (f"{i + 1:4}  {line}" for i, line in enumerate(lines))
    yield f"      not so: {broken}"
