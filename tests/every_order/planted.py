"""Strategies with a mistake each, invariants, and all orders of a case by brute force."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from every_order.runs import Case, Run, run_once
from every_order.scheduler import ACCESS, Option
from every_order.search import follow
from strategies import STRATEGIES
from strategies.collectives import all_gather, reduce_scatter

Async: Any = STRATEGIES["async_param_server"]
Hogwild: Any = STRATEGIES["hogwild"]
Ring: Any = STRATEGIES["ring_all_reduce"]
Server: Any = STRATEGIES["param_server"]


@dataclass(kw_only=True)
class OffByOne(Async):
    def is_within_bound(self, k: int) -> bool:
        return bool(self.workers.steps[k] - self.workers.slowest <= self.max_staleness + 1)


class WithoutWaits(Ring):
    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        chunks = vector.tensor_split(self.transport.world_size)
        n, _ = reduce_scatter(chunks, self.transport, n)
        all_gather(chunks, self.transport)
        return n


class WaitsBeforeItReads(Ring):
    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        other = 1 - self.transport.rank
        self.transport.isend(vector, other, "all", n=n).wait()
        with self.transport.recv(other, "all") as theirs:
            vector.add_(theirs.vector)
            return int(n + theirs.n)


class ChangesXBeforeItIsRead(Server):
    def serve(self) -> None:
        for gradients in self.workers.rounds():
            kept = list(gradients)
            self.workers.send_in_place(self.replica.x)
            self.apply(kept)


class LoadsAndStores(Hogwild):
    def setup(self) -> None:
        super().setup()
        self.descent.optimizer.let_others = lambda: self.transport.access("stores x")


class InTwoSteps(torch.optim.SGD):
    let_others: Any

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (x,) = self.param_groups[0]["params"]
        loaded = x.detach() - self.param_groups[0]["lr"] * x.grad
        self.let_others()
        x.detach().copy_(loaded)


def is_plain(run: Run) -> str | None:
    return "it is another order" if run.departures else None


def nobody_dies(run: Run) -> str | None:
    return None if run.scheduler.dead is None else "one died"


def raises(run: Run) -> str | None:
    raise KeyError("none of that name")


NO_FUNCTION = 3


def order_of(happened: list[Option]) -> object:
    """What an order is: each rank's sequence of choices, and that of all accesses to shared vectors."""
    accesses = [rank for rank, (kind, *_) in happened if kind == ACCESS]
    return tuple(accesses), tuple(sorted(happened, key=lambda option: option[0]))


def by_brute_force(case: Case) -> Iterator[Run]:
    """Yield runs with all decisions of whoever can choose; where each rank's choices are the same, its state is too."""
    waiting: list[tuple[int, ...]] = [()]
    seen = set[object]()
    while waiting:
        picks = waiting.pop()
        yield (run := run_once(case, follow(picks), reduced=False))
        for place, decision in enumerate(run.scheduler.taken):
            for other, option in enumerate(decision.options):
                if (state := order_of([*run.happened[:place], option])) not in seen:
                    seen.add(state)
                    if other != decision.picked:
                        waiting.append((*(one.picked for one in run.scheduler.taken[:place]), other))
