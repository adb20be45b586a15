"""Lab 3: why it is right. Whatever ranks compute together is compared with one process that has all the samples."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.lab import Case, Fault, Figure, Run, Vectors
from lessons.labs import oracle_words as words
from lessons.labs.oracle_words import RANKS, ask, draw_replicas, plan_of
from lessons.labs.ring import AllReduce
from lessons.values import Updater, kind_of, normal

LR = 0.1


@dataclass(frozen=True)
class Task(Case):
    """One run of `average` on `n` ranks; `empty` of them have no sample.

    `broken`: the gradient of a rank that has samples is NaN in one element.
    """

    empty: int = 0
    broken: bool = False

    def __str__(self) -> str:
        return super().__str__() + (f", {self.empty} of the ranks without a sample" if self.empty else "")


class Oracle(AllReduce):
    """The student writes the plan of the batches, the oracle, the mean over all samples, and the comparison."""

    name = "oracle"
    changed = ("g",)
    functions = ("cut", "one_process", "average", "verify")
    whole = "average"
    cases = (Case(1, 1, function="cut"), Case(1, 64, function="one_process"),
             Task(3, 12), Task(4, 24, empty=1), Task(4, 10, empty=3), Task(3, 12, broken=True),
             Task(2, 8, torch.float64), Task(5, 45, torch.float64, empty=2), Task(1, 5), Task(4, 3), Task(3, 10_000),
             Case(1, 48, function="verify"), Case(1, 48, torch.float64, function="verify"))  # fmt: skip
    parts: ClassVar = {
        "cut": {"all samples": lambda run: all(
                    sorted(samples.tolist()) == [*range(n_samples)] for n_samples, *_, samples in _plans(run)),
                "the sizes": lambda run: all(
                    len(parts) == N * -(-n_samples // B) and _are_even(parts.view(-1, N))
                    for n_samples, B, N, parts, _ in _plans(run))},
        "one_process": {"an update a step": lambda run: len(run.results[0]["used"]) == len(
                            plan_of(run.inputs[0])) * run.case.length,
                        "the first step": lambda run: words.is_first_right(run)},
        "average": {"the number": lambda run: all(
                        int(result["total"]) == sum(int(inputs["n"]) for inputs in run.inputs)
                        for result in run.results),
                    "the weights": lambda run: words.are_weighted(run)},
        "verify": {"replicas": lambda run: words.judges(run, words.ALIKE, words.NOT_ALIKE),
                   "the oracle": lambda run: words.judges(run, words.ALIKE, words.FAR, words.NAN),
                   "sizes and signs": lambda run: words.judges(run, words.NEAR_0, words.ONE_FAR, words.NEGATIVE)},
    }  # fmt: skip
    scored = Task(4, 40_000)
    real = Task(3, 1_000, empty=1)

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        if case.function == "cut":
            return [{"sizes": torch.tensor([*_sizes(chance)]).flatten()}]
        if case.function == "one_process":
            return [_draw_plan(case, chance)]
        if case.function == "verify":
            return [draw_replicas(case, chance)]
        assert isinstance(case, Task)
        inputs = [{"g": normal(case.length, case.dtype, chance), "n": torch.tensor([n])}
                  for n in chance.sample(range(8, 48), case.n)]  # fmt: skip
        for rank in chance.sample(range(case.n), case.empty):
            inputs[rank] = {"g": torch.full((case.length,), torch.nan, dtype=case.dtype), "n": torch.tensor([0])}
        if case.broken:
            inputs[chance.randrange(case.n)]["g"][chance.randrange(case.length)] = torch.nan
        return inputs

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if case.function == "cut":
            sizes = inputs["sizes"].reshape(-1, 3).tolist()
            return {f"{name}{i}": vector for i, (n_samples, B, N) in enumerate(sizes)
                    for name, vector in _flattened(yours.cut(n_samples, B, N), N).items()}  # fmt: skip
        if case.function == "one_process":
            return _run_one_process(yours.one_process, inputs)
        if case.function == "verify":
            return ask(yours.verify, inputs, case)
        g = transport.allocate(case.length, case.dtype).copy_(inputs["g"])
        total = yours.average(transport, g, int(inputs["n"]))
        if not isinstance(total, int):
            raise Fault("returned", f"rank {transport.rank}: average returned {kind_of(total)}; write the mean into "
                                    "g, in place, and return the number of all ranks' samples, an int")  # fmt: skip
        return {"g": g, "total": torch.tensor([total])}

    def find_faults(self, run: Run) -> Iterator[str]:
        inputs, result = run.inputs[0], run.results[0]
        match run.case.function:
            case "cut":
                for plan in _plans(run):
                    yield from words.explain_cut(*plan)
            case "one_process":
                yield from words.explain_one_process(inputs, result)
            case "verify":
                yield from words.explain_verdicts(inputs, result)
            case _:
                yield from words.explain_average(run)

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "hole":
            yield self.right_so_far(run.case.function or "average")
        empty = [rank for rank, inputs in enumerate(run.inputs) if not run.case.function and not int(inputs["n"])]
        silent = [rank for rank in empty if not run.of_rank(rank)]
        if kind in ("deadlock", "unread") and silent and len(run.sent) > len(silent):
            yield f"; rank {silent[0]} has no sample, and sent nothing: the others wait for it all the same"
        if kind in ("deadlock", "raised", "unread") and empty:
            yield f"; rank {', '.join(map(str, empty))} had no sample"

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if any(message.vector is None or message.vector.numel() == 1 for message in run.sent):
            yield "a rank sends a number in a message of its own; n can travel beside the vector, as `n`"


def _plans(run: Run) -> Iterator[tuple[int, int, int, torch.Tensor, torch.Tensor]]:
    """Yield what `cut` was given, the sizes of the parts of its plan, and all its samples."""
    for i, (n_samples, B, N) in enumerate(run.inputs[0]["sizes"].reshape(-1, 3).tolist()):
        yield n_samples, B, N, run.results[0][f"parts{i}"], run.results[0][f"samples{i}"]


def _are_even(sizes: torch.Tensor) -> bool:
    return bool((sizes.amax(1) - sizes.amin(1) <= 1).all())


# What is drawn


def _sizes(chance: random.Random) -> list[tuple[int, int, int]]:
    """Return n_samples, B, N: even ones, then such that leave something over, and fewer samples than ranks."""
    N = chance.randint(3, 5)
    B = 3 * N + chance.randint(1, N - 1)
    batches = chance.randint(3, 5)
    return [(batches * 3 * N, 3 * N, N), (batches * B, B, N), (batches * B + B // 2, B, N),
            (batches * B + chance.randint(1, N - 1), B, N), (N - 1, B, N), (batches * B + 1, B, 1)]  # fmt: skip


def _draw_plan(case: Case, chance: random.Random) -> Vectors:
    """Return parts of uneven sizes, one of them empty in each step, and samples of `case.length` elements."""
    parts = []
    for _ in range(chance.randint(3, 4)):
        sizes = [0, *chance.sample(range(1, 6), RANKS - 1)]
        chance.shuffle(sizes)
        parts += sizes
    samples = normal(sum(parts) * case.length, case.dtype, chance)
    return {"parts": torch.tensor(parts), "samples": samples, "x": normal(case.length, case.dtype, chance)}


# What the one rank does


def _flattened(plan: Any, N: int) -> Vectors:
    """Return the sizes of a plan's parts, and all its samples, in order. Raises Fault."""
    try:
        steps = [[[int(sample) for sample in part] for part in parts] for parts in plan[:]]
    except (TypeError, ValueError):
        raise Fault("returned", f"cut returned {kind_of(plan)}; expected a list with an element for each step: a "
                                "list of N ranges, one for each rank") from None  # fmt: skip
    if (other := next((parts for parts in steps if len(parts) != N), None)) is not None:
        raise Fault("returned", f"cut returned {len(other)} parts in a step, for N = {N}; expected one for each rank")
    parts = [part for parts in steps for part in parts]
    return {"parts": torch.tensor([len(part) for part in parts], dtype=torch.int64),
            "samples": torch.tensor([sample for part in parts for sample in part], dtype=torch.int64)}  # fmt: skip


def _run_one_process(one_process: Callable[..., Any], inputs: Vectors) -> Vectors:
    """Return the x before each update, and the gradient that it was made with. Raises Fault."""
    updater = Updater(inputs["x"].clone(), LR)
    samples = inputs["samples"].reshape(-1, updater.x.numel())

    def gradient(chosen: Any) -> torch.Tensor:
        if isinstance(chosen, list) and not all(isinstance(i, int) for i in chosen):
            raise Fault("gradient", "gradient was given a list of parts; expected a list of samples, which are numbers")
        return updater.x - samples[torch.as_tensor(list(chosen)).long()].mean(0)

    one_process(plan_of(inputs), gradient, updater.update)
    return updater.result()
