"""Lab 14: what a wrong order of passes looks like, and what to say of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from lessons.bubble import Pass

ARGUMENTS = {"gpipe": ("p", "m"), "one_f_one_b": ("p", "m"), "interleaved": ("p", "m", "v")}
SIZES = {  # p, m, v
    "gpipe": ((3, 4, 1), (4, 8, 1), (1, 2, 1)),
    "one_f_one_b": ((4, 8, 1), (3, 7, 1), (2, 4, 1), (4, 2, 1), (1, 3, 1)),
    "interleaved": ((2, 4, 2), (4, 8, 2), (3, 6, 3), (4, 4, 2), (2, 6, 1), (1, 2, 2)),
}


@dataclass(frozen=True)
class Plan:
    """The orders of all ranks for p, m, v."""

    name: str
    p: int
    m: int
    v: int
    orders: Sequence[Sequence[Pass]]

    def __str__(self) -> str:
        return f"{self.name}, {', '.join(f'{size} = {getattr(self, size)}' for size in ARGUMENTS[self.name])}:"


def words(pass_: Pass) -> str:
    """Return what a pass is."""
    kind = {"F": "forward", "B": "backward"}.get(pass_.kind, repr(pass_.kind))
    return f"{kind} pass of micro-batch {pass_.micro_batch} in chunk {pass_.chunk}"


def wrong_passes(plan: Plan) -> Iterator[str]:
    """Yield which passes are missing, made twice, unknown, or before what they need of this rank."""
    wanted = [Pass(kind, i, chunk) for kind in "FB" for i in range(plan.m) for chunk in range(plan.v)]
    for rank, order in enumerate(plan.orders):
        found = Counter(order)
        yield from (f"rank {rank} has no such pass: {words(pass_)}" for pass_ in order if pass_ not in wanted)
        for pass_ in wanted:
            if found[pass_] != 1:
                yield f"rank {rank} makes {found[pass_] or 'no'} {words(pass_)}; expected each pass once"
        for i, (kind, *which) in enumerate(order):
            if kind == "B" and Pass("F", *which) not in order[:i]:
                yield f"rank {rank}: {words(order[i])} comes before the forward one"


def too_early(plan: Plan) -> Iterator[str]:
    """Yield which rank has a backward pass among its forward ones."""
    for rank, order in enumerate(plan.orders):
        if "BF" in "".join(pass_.kind for pass_ in order):
            yield f"rank {rank} has a backward pass before its last forward one; GPipe makes all forward ones first"


def keeps_more(plan: Plan) -> Iterator[str]:
    """Yield which rank keeps more activations at a time than it must."""
    for rank, order in enumerate(plan.orders):
        needed, formula = 2 * (plan.p - rank - 1) + (plan.v - 1) * plan.p + 1, "2 (p - rank - 1) + (v - 1) p + 1"
        if plan.name == "one_f_one_b":
            needed, formula = plan.p - rank, "p - rank"
        kept = most = 0
        for pass_ in order:
            kept += 1 if pass_.kind == "F" else -1
            most = max(most, kept)
        if most > min(needed, plan.m * plan.v):
            yield (f"rank {rank} keeps the activations of {most} passes at a time; {formula} = {needed} are enough: it "
                   "makes too many forward passes before a backward one")  # fmt: skip


def too_long(plan: Plan) -> Iterator[str]:
    """Yield why ranks that make their passes as soon as they can take longer than the closed form."""
    ends, at = dict[tuple[str, int, int], float](), [0.0] * plan.p
    left, last = [list(order) for order in plan.orders], plan.p * plan.v - 1
    while any(left):
        before = len(ends)
        for rank, order in enumerate(left):
            while order:
                kind, i, chunk = order[0]
                stage = chunk * plan.p + rank
                needs = (kind, i, stage - 1) if kind == "F" else (kind, i, stage + 1)
                if (kind, stage) == ("B", last):
                    needs = "F", i, stage
                if (kind, stage) != ("F", 0) and needs not in ends:
                    break
                at[rank] = max(at[rank], ends.get(needs, 0.0)) + (1 if kind == "F" else 2) / 3 / plan.v
                ends[kind, i, stage] = at[rank]
                order.pop(0)
        if len(ends) == before:
            rank = next(rank for rank, order in enumerate(left) if order)
            yield f"no rank can go on: rank {rank} is at its {words(left[rank][0])}, which needs another rank's pass"
            return
    best, formula = (plan.m * plan.v + plan.p - 1) / plan.v, "m + p - 1" if plan.v == 1 else "(m v + p - 1) / v"
    if max(at) > best and not isclose(max(at), best):
        kinds = ("".join(pass_.kind for pass_ in order) for order in plan.orders)
        ahead = ", ".join(str(text.find("B")) for text in kinds)
        yield (f"takes {max(at):.4g} c; {formula} = {best:.4g} c is possible. Ranks 0 to {plan.p - 1} make {ahead} "
               "forward passes before their first backward one")  # fmt: skip


Find = Callable[[Plan], Iterator[str]]
TABLE: Mapping[str, Mapping[str, Find]] = {  # by function: what gets points, and the faults in it
    "gpipe": {"every pass once": wrong_passes, "forward first": too_early, "the time": too_long},
    "one_f_one_b": {"every pass once": wrong_passes, "the memory": keeps_more, "the time": too_long},
    "interleaved": {"every pass once": wrong_passes, "the memory": keeps_more, "the time": too_long},
}
