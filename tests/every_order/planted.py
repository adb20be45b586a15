"""Strategies with a mistake each, an optimizer that loses updates, and what else the tests of this room share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from every_order.runs import Case, Run, run_once
from every_order.scheduler import ACCESS, Option
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.collectives import all_gather, reduce_scatter
from strategies.lock_free.hogwild import Hogwild
from strategies.synchronous_server.param_server import ParamServer
from transports.messages import Message


@dataclass(kw_only=True)
class OffByOne(AsyncParamServer):
    """A worker may be s + 1 steps ahead of the slowest."""

    def is_within_bound(self, k: int) -> bool:
        s = self.max_staleness or 0
        return self.workers.steps[k] - self.workers.slowest <= s + 1


@dataclass(kw_only=True)
class WithoutWaits(RingAllReduce):
    """The next backward pass may write what a neighbour still reads."""

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        chunks = vector.tensor_split(self.transport.world_size)
        n, _ = reduce_scatter(chunks, self.transport, n)
        all_gather(chunks, self.transport)
        return n


@dataclass(kw_only=True)
class WaitsFirst(RingAllReduce):
    """Two ranks send, wait until the other has read that, and only then read."""

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        other = 1 - self.transport.rank
        self.transport.isend(vector, other, "all of it", n=n).wait()
        with self.transport.recv(other, "all of it") as theirs:
            vector.copy_(vector + theirs.vector if other else theirs.vector + vector)
            return n + int(theirs.n)


@dataclass(kw_only=True)
class ReadsLate(ParamServer):
    """The server keeps each first gradient, and reads it when its worker has gone on."""

    def serve(self) -> None:
        for gradients in self.workers.rounds():
            kept: list[Message] = list(gradients)
            self.workers.send_in_place(self.replica.x)
            self.apply(kept)


@dataclass(kw_only=True)
class LoadsAndStores(Hogwild):
    """Hogwild whose optimizer lets others go on between its load of x and its store."""

    def setup(self) -> None:
        super().setup()
        self.descent.optimizer.let_others = lambda: self.transport.access("stores x")  # type: ignore[attr-defined]


class InTwoSteps(torch.optim.SGD):
    """x <- x - eta g as a load and a store."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (x,) = self.param_groups[0]["params"]
        loaded = x.detach() - self.param_groups[0]["lr"] * x.grad
        self.let_others()
        x.detach().copy_(loaded)


class _Undecided(Exception):
    pass


def order_of(happened: list[Option]) -> object:
    """What an order is by definition: each rank's sequence of choices, and the accesses of all."""
    accesses = [rank for rank, (kind, *_) in happened if kind == ACCESS]
    return tuple(accesses), tuple(sorted(happened, key=lambda option: option[0]))


def by_brute_force(case: Case, merged: bool = False) -> Iterator[Run]:
    """Yield a run for every sequence of decisions: any rank that can choose may be the next, and nothing sleeps.

    `merged`: of several sequences in which each rank has chosen the same, and so is in the same state, only one.
    """
    waiting: list[list[Option]] = [[]]
    seen: set[object] = set()
    while waiting:
        decided, found = waiting.pop(), list[Option]()

        left = iter(decided)

        def follow(options: Any, left: Any = left, found: Any = found) -> int:
            if (known := next(left, None)) is None:
                found.extend(options)
                raise _Undecided
            return int(options.index(known))

        try:
            yield run_once(case, follow, reduced=False)
        except _Undecided:
            for option in found:
                after = [*decided, option]
                state = order_of(after) if merged else tuple(after)
                if state not in seen:
                    seen.add(state)
                    waiting.append(after)


def first_order_only(run: Run) -> str | None:
    """An invariant that holds in the plain order alone."""
    return "it is another order" if run.departures else None


def nobody_dies(run: Run) -> str | None:
    """An invariant that holds where nobody dies."""
    return None if run.scheduler.dead is None else "one died"


def raising(run: Run) -> str | None:
    raise KeyError("none of that name")


NO_FUNCTION = 3
