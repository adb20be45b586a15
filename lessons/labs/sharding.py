"""Lab 8: the optimizer's state cut over the ranks. After each step all ranks hold the x of one process."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from lessons.lab import Case, Figure, Lab, Run, Sent, Vectors, check_in_place, normal
from lessons.labs.ring import chunk_spans
from lessons.labs.shards import STEPS, Optimizer, first_fault
from strategies.all_reduce.sharded_ring import ShardedRing

_CURE = "write the new parameters into x, in place: x.copy_(...)"


class Sharding(Lab):
    """The student writes `step(transport, x, g, update)`.

    Rank k has a loss of its own, |x - c_k|^2 / 2, whose gradient is x - c_k. The optimizer is SGD with momentum, whose
    state is one number for each element that it has updated.
    """

    name = "sharding"
    functions = ("step",)
    cases = (Case(3, 12), Case(2, 6), Case(4, 24), Case(4, 10), Case(5, 33, torch.float64), Case(1, 6), Case(4, 3),
             Case(3, 10_000))  # fmt: skip
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    strategy = ShardedRing()

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        x = normal(case.length, case.dtype, chance)
        return [{"x": x, "c": normal(case.length, case.dtype, chance)} for _ in range(case.n)]

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        x, g = transport.allocate(case.length, case.dtype), transport.allocate(case.length, case.dtype)
        x.copy_(inputs["x"])
        optimizer = Optimizer(x, g, transport.rank)
        result: Vectors = {}
        for s in range(1, STEPS + 1):
            torch.sub(x, inputs["c"], out=g)
            optimizer.begin_step()
            returned = yours.step(transport, x, g, optimizer.update)
            check_in_place(f"rank {transport.rank}: step", _CURE, returned, x, inputs["x"])
            result |= {f"x{s}": x.clone(), f"g{s}": g.clone(), f"given{s}": optimizer.given.clone()}
            result[f"updated{s}"] = optimizer.updated.clone()
            result[f"of_copies{s}"] = torch.tensor(optimizer.of_copies)
        return result | {"state": torch.tensor(optimizer.elements)}

    def find_fault(self, run: Run) -> str:
        return first_fault(run)

    def figures(self, run: Run) -> list[Figure]:
        case, state = run.case, max(int(result["state"]) for result in run.results)
        whole = max(run.messages), max(run.nbytes), run.rounds, run.seconds
        costs = self.compare(*(one / STEPS for one in whole))
        return [Figure("state of a rank", state, -(-case.length // case.n), "elements / N"), *costs]

    def advise(self, run: Run, missed: Sequence[Figure]) -> str:
        names, advice = [one.name for one in missed], super().advise(run, missed)
        if "state of a rank" in names:
            rank = max(range(run.case.n), key=lambda rank: int(run.results[rank]["state"]))
            state = int(run.results[rank]["state"])
            return f"the optimizer of rank {rank} keeps {state:,} numbers, more than its share; {advice}"
        if sum(one.span is not None and one.span[0] == 1 for one in run.of_rank(0)) > STEPS * (run.case.n - 1):
            return f"the mean gradient is sent on to others, who need only the new x; {advice}"
        return advice

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        if message.span is None:
            return f"a copy of {vector.numel()} elements"
        number, start, stop = message.span
        of = "xg"[number] if number < 2 else "your own vector"
        if (start, stop) == (0, case.length) and case.n > 1:
            return f"all of {of}"
        spans = chunk_spans(case)
        return f"{of} {spans.index((start, stop))}" if (start, stop) in spans else f"{of}[{start}:{stop}]"
