"""Lab 8: the optimizer's state cut over the ranks. After each step all ranks hold the x of one process."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.lab import Case, Fault, Figure, Run, Sent, Vectors
from lessons.labs.param_server import CURE, LR, MOMENTUM, OfLosses, mean_gradient, one_process
from lessons.labs.ring import FORMULAS, chunk_spans
from lessons.sums import are_all, coefficients, describe
from lessons.values import Updater, check_in_place, is_close, kind_of

STEPS = 2  # momentum is seen in the second


class Sharding(OfLosses):
    """The student writes `step(transport, x, g, update)`.

    Rank k has a loss of its own, |x - c_k|^2 / 2, whose gradient is x - c_k. The optimizer is SGD with momentum, whose
    state is one number for each element that it has updated.
    """

    name = "sharding"
    changed = ("x", "g")
    functions = ("step",)
    cases = (Case(3, 12), Case(2, 6), Case(4, 24), Case(4, 10), Case(5, 33, torch.float64), Case(1, 6), Case(4, 3),
             Case(3, 10_000))  # fmt: skip
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    formulas = ("elements / N", *FORMULAS)
    parts: ClassVar = {"step": {
        "the mean": lambda run: _of_first_step(run, lambda xs, rank: any(_wrong_updates(run, xs, rank, 1))),
        "a part for each rank": lambda run: not any(_wrong_parts(run, 1)),
        "the gather": lambda run: _of_first_step(run, lambda xs, rank: not is_close(
            run.results[rank]["x1"], run.results[0]["x1"])),
    }}  # fmt: skip
    steps = STEPS

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        x = transport.allocate(case.length, case.dtype).copy_(inputs["x"])
        g = transport.allocate(case.length, case.dtype)
        optimizer = Optimizer(x, g, transport.rank)
        result: Vectors = {}
        for s in range(1, STEPS + 1):
            torch.sub(x, inputs["c"], out=g)
            optimizer.begin_step()
            returned = yours.step(transport, x, g, optimizer.update)
            check_in_place(f"rank {transport.rank}: step", CURE, returned, x, inputs["x"])
            result |= {f"x{s}": x.clone(), f"g{s}": g.clone(), f"given{s}": optimizer.given.clone()}
            result[f"updated{s}"] = optimizer.updated.clone()
            result[f"of_copies{s}"] = torch.tensor(optimizer.of_copies)
        return result | {"state": torch.tensor(optimizer.elements)}

    def find_faults(self, run: Run) -> Iterator[str]:
        xs, ranks = one_process(run.inputs, STEPS), range(run.case.n)
        for s in range(1, STEPS + 1):
            begin = f"{run.case}, step {s}:"
            yield from (f"{begin} rank {rank} {fault}" for rank in ranks for fault in _wrong_updates(run, xs, rank, s))
            yield from (f"{begin} {fault}" for fault in _wrong_parts(run, s))
            yield from (f"{begin} rank {rank} {fault}" for rank in ranks for fault in _wrong_x(run, xs, rank, s))

    def costs(self, run: Run) -> dict[str, float]:
        return {"state of a rank": max(int(result["state"]) for result in run.results)} | super().costs(run)

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "state of a rank":
            states = [int(result["state"]) for result in run.results]
            most = max(states)
            yield f"the optimizer of rank {states.index(most)} keeps {most:,} numbers, more than its share"
        if sum(sent.span is not None and sent.span[0] == 1 for sent in run.of_rank(0)) > STEPS * (run.case.n - 1):
            yield "the mean gradient is sent on to others, who need only the new x"

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        if message.span is None:
            return f"a copy of {vector.numel()} elements"
        number, start, stop = message.span
        of = "xg"[number] if number < 2 else "your own vector"
        if (start, stop) == (0, case.length) and case.n > 1:
            return f"all of {of}"
        spans = chunk_spans(case)
        return f"{of} {spans.index((start, stop))}" if (start, stop) in spans else f"{of}[{start}:{stop}]"


class Optimizer:
    """SGD with momentum on parts of one rank's x, behind `update`. A part has its state from its first step.

    Of the step that was begun last: `given` [P] are the gradients, and `updated` [P] says where there were some;
    `of_copies` counts the updates of vectors that are no part of x.
    """

    def __init__(self, x: torch.Tensor, g: torch.Tensor, rank: int) -> None:
        self._x, self._g, self._rank = x, g, rank
        self._parts: dict[tuple[int, int], Updater] = {}
        self.begin_step()

    def begin_step(self) -> None:
        """Forget what was given in the step before."""
        self.given = torch.zeros_like(self._x)
        self.updated = torch.zeros_like(self._x, dtype=torch.bool)
        self.of_copies = 0

    @property
    def elements(self) -> int:
        """How many numbers of state it keeps."""
        return sum(part.velocity.numel() for part in self._parts.values())

    def update(self, part: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step on `part`, a slice of x, in place, with the gradient of its elements. Raises Fault."""
        begin = f"rank {self._rank}: update was given"
        if kind_of(part) != kind_of(gradient) or not isinstance(part, torch.Tensor):
            raise Fault("update", f"{begin} {kind_of((part, gradient))}; expected vectors of one length and dtype, a "
                                  "slice of x and the gradient of its elements")  # fmt: skip
        if not part.numel():
            return
        if _start(part, self._g) is not None:
            raise Fault("update", f"{begin} a slice of g to be updated: the slice of x comes first")
        start = _start(part, self._x)
        if start is None:
            self.of_copies += 1
            Updater(part, LR, MOMENTUM).update(gradient)  # its state goes with it
            return
        where = slice(start, start + part.numel())
        self._parts.setdefault((where.start, where.stop), Updater(part, LR, MOMENTUM)).update(gradient)
        self.given[where], self.updated[where] = gradient, True


def _start(part: torch.Tensor, vector: torch.Tensor) -> int | None:
    """Return the first element of a slice of a vector; None if it is none."""
    start, rest = divmod(part.data_ptr() - vector.data_ptr(), vector.element_size())
    inside = part.is_contiguous() and not rest and 0 <= start <= vector.numel() - part.numel()
    return start if inside else None


# What is wrong


def _of_first_step(run: Run, is_wrong: Callable[[Sequence[torch.Tensor], int], bool]) -> bool:
    """Whether x has been updated, and nothing is wrong on a rank, given x of one process before each step."""
    xs = one_process(run.inputs, 1)
    updated = any(result["updated1"].any() for result in run.results)
    return updated and not any(is_wrong(xs, rank) for rank in range(run.case.n))


def _is_finished(vector: torch.Tensor, mean: torch.Tensor, run: Run) -> bool:
    """Whether a vector is the mean of all gradients, or their sum."""
    return is_close(vector, mean) or is_close(vector, run.case.n * mean)


def _wrong_updates(run: Run, xs: Sequence[torch.Tensor], rank: int, s: int) -> Iterator[str]:
    """Yield the faults in the gradients that a rank's optimizer was given in a step."""
    n, result, x = run.case.n, run.results[rank], xs[s - 1]
    if int(result[f"of_copies{s}"]):
        yield "called update with a tensor that is no slice of x, such as a copy: its momentum is new in every step"
    mean, given, has = mean_gradient(run.inputs, x), result[f"given{s}"], result[f"updated{s}"]
    for c, (start, stop) in enumerate(chunk_spans(run.case)):
        here = torch.arange(start, stop)[has[start:stop]]
        if not len(here) or is_close(given[here], mean[here]):
            continue
        found = coefficients(given[here], [(x - inputs["c"])[here] for inputs in run.inputs])
        begin = f"updated chunk {c} with"
        if found and are_all(found, 1):
            yield f"{begin} the sum of the gradients; expected their mean: divide by {n}, once"
        what = describe(found, "g of rank") if found else "something else"
        yield f"{begin} {what}; expected the mean of all {n}{_where_finished(run, rank, s, mean, c)}"


def _where_finished(run: Run, rank: int, s: int, mean: torch.Tensor, updated: int) -> str:
    """Return which chunk of a rank's g is a finished sum, or mean, after the step in which it updated one."""
    g = run.results[rank][f"g{s}"]
    finished = [c for c, (start, stop) in enumerate(chunk_spans(run.case))
                if start < stop and _is_finished(g[start:stop], mean[start:stop], run)]  # fmt: skip
    if not finished:
        return ". No chunk of g on this rank is the sum over all ranks: reduce-scatter first"
    if finished[0] == updated:
        return ". When it was updated, the sum of that chunk was not finished: reduce-scatter first"
    return f". On this rank the reduced chunk is chunk {finished[0]}: update that one"


def _wrong_parts(run: Run, s: int) -> Iterator[str]:
    updated = torch.stack([result[f"updated{s}"] for result in run.results])  # [N, P]
    for missing in _elements(~updated.any(0)):
        yield f"no rank updated {missing} of x: the parts must cover all of it, also where N does not divide its length"
    several = updated.sum(0) > 1
    for common in _elements(several):
        first, other = (several & updated).any(1).nonzero().flatten().tolist()[:2]
        yield (f"ranks {first} and {other} both updated {common} of x, so both keep their state: a rank is to update "
               "its own part only")  # fmt: skip


def _elements(which: torch.Tensor) -> Iterator[str]:
    """Yield the first run of elements for which this is so."""
    found = which.nonzero().flatten().tolist()
    if found:
        last = next((i for i in range(found[0], len(which)) if not which[i]), len(which)) - 1
        yield f"elements {found[0]} to {last}" if last > found[0] else f"element {last}"


def _wrong_x(run: Run, xs: Sequence[torch.Tensor], rank: int, s: int) -> Iterator[str]:
    result, mean = run.results[rank], mean_gradient(run.inputs, xs[s - 1])
    for c, (start, stop) in enumerate(chunk_spans(run.case)):
        x, old = result[f"x{s}"][start:stop], xs[s - 1][start:stop]
        if is_close(x, xs[s][start:stop]):
            continue
        if _is_finished(x, mean[start:stop], run):
            yield f"holds gradients in chunk {c} of x; what is gathered after the update are the parameters"
        if not is_close(x, old):
            yield f"holds another x than one process in chunk {c}"
        begin = f"holds the old x in chunk {c}"
        for message in run.sent:
            came = message.dst == rank and message.span == (0, start, stop)
            if came and message.vector is not None and is_close(message.vector, old):
                yield f"{begin}, for rank {message.rank} sent it so: update first, then gather"
        if _is_finished(result[f"g{s}"][start:stop], mean[start:stop], run):
            yield f"{begin}; its g holds the finished gradient there, but its optimizer has no state for that chunk"
        yield f"{begin}: nobody has sent it the new one; gather the chunks of x after the update"
