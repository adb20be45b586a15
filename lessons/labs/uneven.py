"""Lab 17: uneven batches. Batch normalization over all ranks, and a loop in which some have fewer batches."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from lessons.lab import Case, Fault, Figure, Run, Vectors
from lessons.scripts import ScriptLab, count_calls
from lessons.uneven import EPS
from lessons.values import check_like, is_close, kind_of, normal

BATCHES: tuple[tuple[int, ...], ...] = ((3, 2), (4,), (2, 5, 1, 2), (), (6, 1, 3))  # by rank, samples of each batch
SAMPLES = (5, 3, 0, 9, 4)  # by rank, of `normalize`
F64 = torch.float64


def batches_of(inputs: Vectors, case: Case, rank: int) -> list[torch.Tensor]:
    """Return the batches of a rank."""
    sizes = BATCHES[rank]
    return list(inputs["batches"].view(-1, case.length)[: sum(sizes)].split([*sizes])) if sizes else []


def together(run: Run) -> list[Vectors]:
    """Return what one process gets that has the samples of all ranks, and some wrong results, by rank."""
    case, sizes = run.case, SAMPLES[: run.case.n]
    given = [(values["x"].view(-1, case.length)[:n], values["u"].view(-1, case.length)[:n])
             for values, n in zip(run.inputs, sizes, strict=True)]  # fmt: skip
    x, u = (torch.cat(parts) for parts in zip(*given, strict=True))
    y, deviation = _normalize(x)
    of_ranks = [(part, z, (part.sum(0), (part * z).sum(0)), max(len(part), 1))
                for (_, part), z in zip(given, y.split(sizes), strict=True)]  # fmt: skip
    own = [(g - (a + z * b) / len(x)) / deviation for g, z, (a, b), _ in of_ranks]
    sums = [sum(parts) for parts in zip(*(both for *_, both, _ in of_ranks), strict=True)]
    divided = [(g - (sums[0] + z * sums[1]) / n) / deviation for g, z, _, n in of_ranks]
    halves = [sum(both[i] / n for *_, both, n in of_ranks) / case.n for i in (0, 1)]
    mean, square = (torch.stack([change(part).sum(0) / max(len(part), 1) for part, _ in given]).mean(0)
                    for change in (torch.clone, torch.square))  # fmt: skip
    spread = torch.stack([part.var(0, correction=0) if len(part) else 0 * mean for part, _ in given]).mean(0)
    values = {
        "y": y, "gradient": (u - u.mean(0) - y * (u * y).mean(0)) / deviation,
        "raw": u / deviation, "gradient alone": torch.cat(own),
        "alone": torch.cat([_normalize(part)[0] for part, _ in given]),
        "unbiased": (x - x.mean(0)) / (x.var(0) + EPS).sqrt(), "variance": y / deviation,
        "without eps": (x - x.mean(0)) / x.std(0, correction=0),
        "square": y * deviation / (x.square().mean(0) + EPS).sqrt(),
        "of means": (x - mean) / (square - mean.square() + EPS).sqrt(), "spread": (x - mean) / (spread + EPS).sqrt(),
        "divided": torch.cat(divided),
        "halves": torch.cat([(g - halves[0] - z * halves[1]) / deviation for g, z, *_ in of_ranks]),
        "one mean": (u - u.mean(0)) / deviation,
        "times deviation": u - u.mean(0) - y * (u * y).mean(0),
    }  # fmt: skip
    parts = {name: value.split(sizes) for name, value in values.items()}
    return [{name: of_ranks[rank] for name, of_ranks in parts.items()} for rank in range(case.n)]


def _of_all(results: Sequence[Vectors], name: str) -> torch.Tensor:
    return torch.cat([result[name] for result in results])


def _is_as(run: Run, name: str, of: Callable[[torch.Tensor, Vectors], torch.Tensor]) -> bool:
    """Whether a result is not zero, and `of` it and the right y, of all samples, is what it is of the right one."""
    right = {wanted: _of_all(together(run), wanted) for wanted in ("y", name)}
    value = _of_all(run.results, name)
    return bool(value.any()) and is_close(of(value, right), of(right[name], right))


def _is_centred(run: Run) -> bool:
    """Whether y is x less the mean over all samples, but for a factor for each channel."""
    y, right = _of_all(run.results, "y"), _of_all(together(run), "y")
    return bool(y.any()) and is_close((y * right).sum(0) / right.square().sum(0) * right, y)


def _normalize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not len(x):
        return x, x.new_ones(x.shape[1])
    deviation = (x.var(0, correction=0) + EPS).sqrt()
    return (x - x.mean(0)) / deviation, deviation


def steps_of(run: Run) -> Vectors:
    """Return the gradients of the steps of one process, [steps, P], and wrong ones."""
    batches = [batches_of(values, run.case, rank) for rank, values in enumerate(run.inputs)]
    found: dict[str, list[torch.Tensor]] = {"used": [], "means": [], "all": [], "sum": []}
    for step in range(max(map(len, batches))):
        parts = [of[step] for of in batches if step < len(of)]
        samples, means = torch.cat(parts), torch.stack([part.mean(0) for part in parts])
        values = samples.mean(0), means.mean(0), means.sum(0) / run.case.n, samples.sum(0)
        for kept, value in zip(found.values(), values, strict=True):
            kept.append(value)
    return {name: torch.stack(values) for name, values in found.items()}


# What a wrong result looks like: by result, the name of a wrong one of `together` or `steps_of`, and what to say of it
MEANS = "made with the mean of the ranks' means; ranks with more samples count more: add up sums and numbers"
TABLE: Mapping[str, Mapping[str, str]] = {
    "y": {"alone": "normalized by this rank's samples alone",
          "of means": MEANS, "spread": MEANS,
          "variance": "divided by the variance + EPS; expected its square root",
          "square": "made without - mean^2: the variance is mean(x^2) - mean(x)^2",
          "without eps": "made without EPS, or with EPS outside the root",
          "unbiased": "divided by the unbiased deviation; divide the variance by n, not by n - 1"},
    "gradient": {"gradient alone": "made with the sums over this rank's samples; add up over the ranks",
                 "divided": "divided by the samples of this rank; add up how many there are",
                 "halves": MEANS,
                 "one mean": "made without y mean(g y): the variance depends on x, too",
                 "times deviation": "not divided by sqrt(variance + EPS)",
                 "raw": "g / sqrt(variance + EPS) alone: mean and variance depend on x, too"},
    "used": {"means": "the mean of the ranks' means; ranks with more samples count more: add up sums and numbers",
             "all": "divided by N, though some ranks have no batch: add up how many samples there are",
             "sum": "the sum over the samples; expected the mean"},
}  # fmt: skip


class Uneven(ScriptLab):
    """The student writes the passes of a batch normalization, and the loop."""

    name = "uneven"
    functions = ("normalize", "differentiate", "train")
    changed = ()
    cases = (Case(2, 3, function="normalize"), Case(4, 5, F64, function="normalize"),
             Case(2, 3, F64, function="differentiate"), Case(4, 5, F64, function="differentiate"),
             Case(2, 3, function="train"), Case(5, 4, F64, function="train"), Case(1, 4, function="train"),
             Case(4, 4, F64))  # fmt: skip
    scored = Case(5, 64)
    real = Case(3, 8, F64)
    formulas = ("1 + 1 + 1 + steps", "2 (N - 1) / N of 3 C, 2 C and P + 1 numbers, a step each")
    parts: ClassVar = {
        "normalize": {"y is centred": lambda run: _is_centred(run),
                      "y is scaled": lambda run: _is_as(run, "y", lambda y, of: y - y.mean(0))},
        "differentiate": {"through the mean": lambda run: _is_as(run, "gradient", lambda g, of: g.sum(0)),
                          "through the variance": lambda run: _is_as(
                              run, "gradient", lambda g, of: (g * of["y"]).sum(0))},
        "train": {"all steps": lambda run: all(
                      len(result["used"]) == len(steps_of(run)["used"]) for result in run.results),
                  "the mean": lambda run: all(
                      is_close(result["used"][:1], steps_of(run)["used"][:1]) for result in run.results)},
    }  # fmt: skip

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        sizes = {"x": 9, "u": 9, "batches": 10}
        return [{name: normal(n * case.length, case.dtype, chance) + rank * (name == "x") for name, n in sizes.items()}
                for rank in range(case.n)]  # fmt: skip

    def run_rank(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        rank, result = dist.get_rank(), dict[str, torch.Tensor]()
        x, u = (inputs[name].view(-1, case.length)[: SAMPLES[rank]].clone() for name in ("x", "u"))
        begin = f"{case}: rank {rank}:"
        if case.function != "train":
            returned = yours.normalize(x)
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise Fault("returned", f"{begin} normalize returned {kind_of(returned)}; expected (y, what is kept)")
            check_like("returned", f"{begin} normalize returned", returned[0], x)
            result["y"] = returned[0]
            if case.function != "normalize":
                result["gradient"] = yours.differentiate(u, returned[1])
                check_like("returned", f"{begin} differentiate returned", result["gradient"], u)
        if case.function in ("train", ""):
            used: list[torch.Tensor] = []
            like = inputs["x"][: case.length]

            def update(g: Any) -> None:
                check_like("update", f"{begin} update was given", g, like)
                used.append(g.clone())

            yours.train(batches_of(inputs, case, rank), lambda batch: batch.mean(0), update, like.clone())
            result["used"] = torch.stack([*used, like])[:-1]
        return result

    def find_faults(self, run: Run) -> Iterator[str]:
        rights, steps = together(run), steps_of(run)
        for rank, result in enumerate(run.results):
            right, begin = rights[rank] | steps, f"{run.case}: rank {rank}:"
            for name, value in result.items():
                if name == "used" and len(value) != len(right[name]):
                    yield (f"{begin} train made {len(value)} updates; expected {len(right[name])}, as many as the rank "
                           "with most batches has batches")  # fmt: skip
                if not is_close(value, right[name]):
                    what = (text for wrong, text in TABLE[name].items() if is_close(value, right[wrong]))
                    label = "what update was given" if name == "used" else name
                    yield f"{begin} {label} is {next(what, 'something else than that of one process')}"

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "deadlock" and run.case.function in ("train", ""):
            yield "; a rank whose batches are used up must take part until no rank has one"
        elif kind == "deadlock":
            yield "; a rank without samples must take part, too"
        elif kind == "mismatch" and run.case.function != "train":
            yield "; ranks have different numbers of samples: add up over them first, sum(0)"
        yield from super().comment(kind, run)

    def costs(self, run: Run) -> dict[str, float]:
        kinds = ("all_reduce", "all_gather", "broadcast", "all_to_all", "message")
        return {"collectives": sum(count_calls(run, kind) for kind in kinds), "bytes of a rank": max(run.nbytes)}

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "collectives":
            yield "what is added up at one time can go in one vector: all-reduce once a pass and once a step"
