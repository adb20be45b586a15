"""Planted bugs, and who finds them: all orders of the smallest case, or a thousand runs with random delays.

python -m tests.every_order.planted_bugs    # the table goes to results/, too
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from gradwire.core.strategy.workers import GRADIENT
from gradwire.core.transports.base import ANY, Message, Work
from gradwire.core.transports.messages import Delivered
from gradwire.every_order.invariants import chosen
from gradwire.every_order.problem import LoadsAndStores
from gradwire.every_order.report import Report, examine
from gradwire.every_order.runs import LR, Case, run_once
from gradwire.every_order.scheduler import Option, Pick
from strategies import STRATEGIES, AsyncParamServer, Hogwild
from strategies.collectives import all_gather, reduce_scatter

RANDOM_RUNS = 1000
ASYNC = "async_param_server"
OUT = Path(__file__).parents[2] / "results" / "amd-epyc-2-cores" / "benchmarks" / "planted_bugs.csv"


def bug(strategy: str, method: str, says: str, n_gpus: int, steps: int, own: bool = False, deaths: int = 0,
        **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Plant a function in place of a method, `right`, which is its first argument."""

    def plant(function: Callable[..., Any]) -> Callable[..., Any]:
        base = STRATEGIES[strategy]
        right = getattr(base, method)
        wrong = type(base.__name__, (base,), {
            method: lambda self, *given, **more: function(partial(right, self), self, *given, **more),
            "name": base.name, "__module__": __name__,
        })  # fmt: skip
        made: Any = dataclass(kw_only=True)(wrong)
        cases = [Case(kind(**options), n_gpus, steps, own_steps=own) for kind in (made, base)]
        BUGS[says] = cases[0], cases[1], deaths
        return function

    return plant


BUGS: dict[str, tuple[Case, Case, int]] = {}  # by what is wrong: with the bug, without it, and whether a rank may die


@bug("ring_all_reduce", "all_reduce", "a ring does not wait at its end", 3, 2)
def _(right: Any, self: Any, vector: torch.Tensor, n: int) -> int:
    chunks = vector.tensor_split(self.transport.world_size)
    n, _ = reduce_scatter(chunks, self.transport, n)
    all_gather(chunks, self.transport)
    return n


@bug("ring_all_reduce", "all_reduce", "two ranks send, and wait, before they receive", 2, 1)
def _(right: Any, self: Any, vector: torch.Tensor, n: int) -> int:
    other = 1 - self.transport.rank
    self.transport.isend(vector, other, "all", n=n).wait()
    with self.transport.recv(other, "all") as theirs:
        vector.copy_(theirs.vector + vector)
        return n + int(theirs.n)


@bug("param_server", "serve", "a server adds gradients as they come", 4, 1)
def _(right: Any, self: Any) -> None:
    workers, transport = self.workers, self.transport
    workers.present = set(workers.alive)
    while workers.present:
        gradients = []
        for _ in list(workers.present):
            message = transport.recv(ANY, (GRADIENT, "goodbye"))
            if message.tag == GRADIENT:
                gradients.append(workers._take(message))
            else:
                workers.present.remove(message.src)
        if gradients:
            self.apply(gradients)
            workers.send_in_place(self.replica.x)


@bug(ASYNC, "is_within_bound", "a bound is off by one", 3, 8, max_staleness=2)
def _(right: Any, self: Any, k: int) -> bool:
    return bool(self.workers.steps[k] - self.workers.slowest <= self.max_staleness + 1)


@bug(ASYNC, "serve", "who was held back is not answered later", 3, 2, own=True, max_staleness=0)
def _(right: Any, self: Any) -> None:
    for gradient in self.workers.messages(GRADIENT, on_worker_left=self.reply):
        self.apply([gradient])
        for k in self.workers.take_waiting(lambda k, src=gradient.src: k == src and self.is_within_bound(k)):
            self.send_x(k)


@bug(ASYNC, "send_x", "x is sent without a copy", 3, 2, own=True)
def _(right: Any, self: Any, k: int) -> None:
    self.workers.send(self.replica.x, k, "parameters", n=self.updater.samples)


@bug(ASYNC, "reply", "one goodbye ends the epoch for all", 3, 2, own=True)
def _(right: Any, self: Any) -> None:
    if len(self.workers.present) < len(self.workers.alive):
        self.workers.present.clear()
    right()


@bug(ASYNC, "apply", "a gradient is applied twice after a death", 3, 3, own=True, deaths=1)
def _(right: Any, self: Any, gradients: Iterable[Message]) -> None:
    gradients = list(gradients)
    right(gradients)
    if len(self.workers.alive) < 2:
        right(gradients)


@bug("backup_workers", "serve", "a late gradient is applied", 4, 2)
def _(right: Any, self: Any) -> None:
    for gradient in self.workers.messages(GRADIENT, on_worker_left=self.close_step):
        self.on_time[gradient.src] = gradient.log_receipt()
        self.close_step()


@bug("downpour", "send", "a movement is cleared before it was read", 3, 2)
def _(right: Any, self: Any, movement: torch.Tensor, n_samples: int, tag: str) -> None:
    self.transport.isend(movement, 0, tag, n=n_samples)


@bug("overlapped_ring", "setup", "buckets share a tag", 2, 1, bucket_mb=5e-5)
def _(right: Any, self: Any) -> None:
    right()
    for bucket in self.buckets:
        bucket.tag = "bucket"


@bug("dgs", "difference", "a server forgets what it has sent", 3, 3, density=0.2)
def _(right: Any, self: Any, k: int) -> torch.Tensor:
    w = self.differences[k].w.clone()
    found: torch.Tensor = right(k)
    self.differences[k].w.copy_(w)
    return found


# Weights


@contextmanager
def step_times(self: Any, factor: float) -> Iterator[None]:
    """In the block, an update is so many times as long."""
    (group,) = self.updater.optimizer.param_groups
    group["lr"], lr = group["lr"] * factor, group["lr"]
    yield
    group["lr"] = lr


@bug("param_server", "apply", "a server halves a mean", 3, 2)
def _(right: Any, self: Any, gradients: Iterable[Message]) -> None:
    with step_times(self, 0.5):
        right(gradients)


@bug("param_server", "apply", "a mean of gradients forgets their samples", 3, 2)
def _(right: Any, self: Any, gradients: Iterable[Message]) -> None:
    right(replace(gradient, n=1) for gradient in gradients)


@bug(ASYNC, "apply", "the update that ends an epoch is lost", 3, 3)
def _(right: Any, self: Any, gradients: Iterable[Message]) -> None:
    with step_times(self, float(self.updater.samples + 1 < self.updater.until)):
        right(gradients)


@bug("ad_psgd", "answer", "a passive rank answers and keeps its own", 2, 1, own=True)
def _(right: Any, self: Any, request: Message) -> None:
    before = self.apart.clone()
    right(request)
    self.apart.copy_(before)


BUGS["updates are loads and stores"] = (
    Case(Hogwild(), 2, 1, own_steps=True, optimizer=partial(LoadsAndStores, lr=LR)),
    Case(Hogwild(), 2, 1, own_steps=True),
    0,
)


def with_delays(seed: int) -> Pick:
    """Return what lets happen first what comes first, where all that may happen takes a random time (exponential)."""
    draw, now, times = random.Random(seed), 0.0, dict[Option, float]()

    def pick(options: Sequence[Option]) -> int:
        nonlocal now
        for option in options:
            times.setdefault(option, now + draw.expovariate(1))
        first = min(options, key=times.__getitem__)
        now = times.pop(first)
        return options.index(first)

    return pick


def met(case: Case, deaths: int) -> int:
    """Return in how many of RANDOM_RUNS runs with random delays, and with a random death, something does not hold."""
    draw, reports = random.Random(0), [Report(case) for _ in range(RANDOM_RUNS)]
    for seed, report in enumerate(reports):
        variant = replace(case, dies=(draw.randint(1, len(case.roles) - 1), draw.randint(1, 8))) if deaths else case
        report.take(run_once(variant, with_delays(seed), reduced=False), chosen(variant))
    models = {bits for report in reports for bits in report.results}
    several = len(models) > 1 and not case.strategy.traits.asynchronous
    return sum(report.counterexample is not None or several for report in reports)


@dataclass(kw_only=True)
class WithoutTheWait(AsyncParamServer):
    """The worker does not wait for its gradient: no bug, for the server gives it back before it replies."""

    def send_gradient(self, n_samples: int) -> Work:
        super().send_gradient(n_samples)
        return Delivered()


def rows() -> Iterable[dict[str, Any]]:
    """Yield what is found of each bug, and that nothing is where it is not planted."""
    for says, (bad, good, deaths) in tqdm(BUGS.items(), unit="bug"):
        first = examine(bad, deaths=deaths, until_broken=True)
        whole, right = examine(bad, deaths=deaths, at_most=2000), examine(good, deaths=deaths, at_most=2000)
        assert right.counterexample is None, right.text()
        fails = max(of - held for held, of in whole.held.values())
        found = first.counterexample
        yield {
            "bug": says, "case": str(bad), "orders": f"{whole.orders}{'' if whole.complete else ' or more'}",
            "fails in": fails, "found by order": first.orders if found else None,
            "departures": found.run.departures if found else None, "by": found.broken.split(":")[0] if found else "",
            f"of {RANDOM_RUNS} random runs": met(bad, deaths),
        }  # fmt: skip


if __name__ == "__main__":
    table = pd.DataFrame(rows())
    table.to_csv(OUT, index=False)
    print(table.to_string(index=False))
    n, unwaited = len(table), examine(Case(WithoutTheWait(), 3, 4, own_steps=True))
    print(f"no bug: a worker that does not wait for its gradient: nothing is wrong in {unwaited.orders} orders")
    assert unwaited.counterexample is None
    print(f"found by all orders: {table['found by order'].count()} of {n}; by {RANDOM_RUNS} random runs: "
          f"{(table.iloc[:, -1] > 0).sum()} of {n}")  # fmt: skip
