"""A strategy with a mistake, invariants, and all orders of a case by brute force."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from gradwire.every_order.runs import Run
from gradwire.every_order.scheduler import ACCESS, Option, Pick, Scheduler
from gradwire.every_order.search import Orders, R, follow
from strategies import AsyncParamServer


@dataclass(kw_only=True)
class OffByOne(AsyncParamServer):
    def is_within_bound(self, k: int) -> bool:
        return self.workers.steps[k] - self.workers.slowest <= (self.max_staleness or 0) + 1


def is_plain(run: Run) -> str | None:
    return "it is another order" if run.departures else None


def nobody_dies(run: Run) -> str | None:
    return None if run.dead is None else "one died"


def raises(run: Run) -> str | None:
    raise KeyError("none of that name")


NO_FUNCTION = 3


def order_of(happened: list[Option]) -> object:
    """What an order is: each rank's sequence of choices, and that of all accesses to shared vectors."""
    accesses = [rank for rank, (kind, *_) in happened if kind == ACCESS]
    return tuple(accesses), tuple(sorted(happened, key=lambda option: option[0]))


def by_brute_force(once: Callable[[Pick], R]) -> Iterator[R]:
    """Yield runs with all decisions of whoever can choose; where each rank's choices are the same, its state is too."""
    waiting: list[tuple[int, ...]] = [()]
    seen = set[object]()
    while waiting:
        yield (run := once(follow(waiting.pop())))
        for place, decision in enumerate(run.taken):
            for other, option in enumerate(decision.options):
                if (state := order_of([*run.happened[:place], option])) not in seen:
                    seen.add(state)
                    if other != decision.picked:
                        waiting.append((*(decision.picked for decision in run.taken[:place]), other))


def has_all_orders(once: Callable[..., Scheduler]) -> bool:
    """Whether what the search finds is what brute force finds, each order once."""
    orders = [order_of(run.happened) for run in Orders(once, 20_000)]
    everything = {order_of(run.happened) for run in by_brute_force(partial(once, reduced=False))}
    return len(set(orders)) == len(orders) and set(orders) == everything
