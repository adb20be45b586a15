"""The verdicts on the functions of lab 3: which samples count how much in a plan, a gradient, a mean; and on `verify`.

`verify` is asked about replicas of each kind, with a known right answer and a reason.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lessons.lab import Case, Fault, Run, Vectors, name_dtype
from lessons.sums import are_all, coefficients, describe
from lessons.values import is_close, kind_of, normal

RANKS = 3  # that the plan of one_process is cut for
REPLICAS = 3  # of a trial
TOLERANCE = 1e-4
_VERDICTS = {  # what verify must say of replicas, and why
    "alike, and a rounding away from the oracle":
        (True, "float32 sums in another order have other last bits: ask for closeness, not for the same bits"),
    "alike, and in an element near 0 a rounding away from the oracle":
        (True, "rounding there is small beside the vector's largest element, not beside the element itself"),
    "not alike: one element of one replica has another last bit":
        (False, "replicas that take the same steps have the same bits; a difference of one bit says that they do not"),
    "alike, and 1 % away from the oracle":
        (False, "that all ranks agree does not make them right: mean of means, on all of them alike, agrees too"),
    "NaN, all of them": (False, "NaN is close to nothing"),
    "alike, and in one element 100 tolerances more or less than the oracle":
        (False, "a distance has no sign: take .abs() of the difference"),
    "alike, and a rounding away from an oracle that is negative in all elements":
        (True, "the largest element is the largest in size: .abs().max()"),
}  # fmt: skip
ALIKE, NEAR_0, NOT_ALIKE, FAR, NAN, ONE_FAR, NEGATIVE = range(len(_VERDICTS))


def explain_average(run: Run) -> Iterator[str]:
    """Yield the faults in the means over all samples that ranks end with, and in the numbers of samples."""
    case = run.case
    ns = [int(inputs["n"]) for inputs in run.inputs]
    n, having = sum(ns), [rank for rank, n_k in enumerate(ns) if n_k]  # a rank without samples does not count
    mean = (torch.stack([ns[k] * run.inputs[k]["g"].double() for k in having]).sum(0) / n).to(case.dtype)
    nan = mean.isnan()
    begin = f"{case}: {', '.join(map(str, ns))} samples on the ranks:"
    results = [result["g"] for result in run.results]
    for rank, g in enumerate(results):
        if is_close(g[~nan], mean[~nan]) and bool(g[nan].isnan().all()):
            continue
        if ns[rank] and torch.equal(g.nan_to_num(), run.inputs[rank]["g"].nan_to_num()):
            yield f"{begin} rank {rank}'s g is as it was; write the mean into g, in place: `g = ...` makes a new tensor"
        if g[~nan].isnan().any():
            yield (f"{begin} rank {rank} ends with NaN: the mean of no samples is NaN, and 0 x NaN is NaN too; a rank "
                   "without samples must put zeros into the sum")  # fmt: skip
        if nan.any() and not g[nan].isnan().all():
            yield (f"{begin} a gradient is NaN in one element, and rank {rank} ends with a number there: leave out who "
                   "has no samples, but let be seen what has gone wrong")  # fmt: skip
        for message in run.sent:
            if message.vector is not None and message.vector.element_size() < case.dtype.itemsize:
                yield (f"{begin} rank {message.rank} sent {name_dtype(message.vector.dtype)}, and rank {rank} ends "
                       f"with a mean that has lost digits; expected {name_dtype(case.dtype)}")  # fmt: skip
        parts = {k: run.inputs[k]["g"][~nan] for k in having}
        yield f"{begin} rank {rank} ends with {_weights(g[~nan], parts, [ns[k] for k in having], case.n)}"
    for rank, g in enumerate(results):
        if not torch.equal(g[~nan], results[0][~nan]):
            yield (f"{begin} rank 0 and rank {rank} have the same mean but for rounding: the replicas drift apart; add "
                   "in one order on all ranks")  # fmt: skip
    for rank, result in enumerate(run.results):
        if int(result["total"]) != n:
            yield f"{begin} average returned {int(result['total'])} on rank {rank}; expected the sum of all n, {n}"


def are_weighted(run: Run) -> bool:
    """Whether the means of the ranks that have samples stand in all results in the ratio of their samples."""
    having = [inputs for inputs in run.inputs if int(inputs["n"])]
    for result in run.results:
        found = coefficients(result["g"], [inputs["g"] for inputs in having]) or [0.0]
        each = [a / int(inputs["n"]) for a, inputs in zip(found, having, strict=False)]
        if not each[0] or not are_all([a / each[0] for a in each], 1):
            return False
    return True


def _weights(g: torch.Tensor, parts: Mapping[int, torch.Tensor], ns: Sequence[int], N: int) -> str:
    """Return in words which weights the means of the ranks that have samples got."""
    n = sum(ns)
    of_all = f"divide by the number of all samples, {n}"
    known: dict[str, list[float]] = {
        f"the mean of the {N} ranks' means: a sample counts more where there are fewer": [1 / N for _ in ns],
        "the plain sum of the means; weight each by its n": [1.0 for _ in ns],
        f"the weighted sum, not divided; {of_all}": [float(n_k) for n_k in ns],
        f"the weighted sum divided by N = {N}; {of_all}": [n_k / N for n_k in ns],
        "means that were weighted twice: n stands in them squared": [n_k * n_k / n for n_k in ns],
        **{f"the weighted sum divided by {m}, the samples of one rank; {of_all}": [n_k / m for n_k in ns] for m in ns},
    }
    for text, weights in known.items():
        expected = torch.stack([weight * part for weight, part in zip(weights, parts.values(), strict=True)]).sum(0)
        if g.numel() and bool((g - expected).abs().max() <= 1e-3 * expected.abs().max()):
            return text
    found = coefficients(g, list(parts.values()))
    if found is None:
        return "something that is no sum of the ranks' means"
    right = " + ".join(f"{n_k} x rank {k}" for k, n_k in zip(parts, ns, strict=True))
    return f"{describe(found, numbers=parts)}; expected ({right}) / {n}"


def explain_cut(n_samples: int, B: int, N: int, parts: torch.Tensor, samples: torch.Tensor) -> Iterator[str]:
    """Yield the faults in a plan, given by the sizes of its parts and all its samples."""
    ranges = iter(torch.split(samples, parts.tolist()))
    steps = [[next(ranges).tolist() for _ in range(N)] for _ in range(len(parts) // N)]
    batches = [range(start, min(start + B, n_samples)) for start in range(0, n_samples, B)]
    for s in range(max(len(steps), len(batches))):
        yield from (f"cut({n_samples}, {B}, {N}): {text}" for text in _explain_step(s, steps, batches))


def _explain_step(s: int, steps: Sequence[Sequence[Sequence[int]]], batches: Sequence[range]) -> Iterator[str]:
    if s >= len(batches):
        yield f"there is a step {s}, and the samples, 0 to {batches[-1][-1]}, are used up after step {s - 1}"
    batch = batches[s]
    if s >= len(steps) or not any(steps[s]):
        smaller = "; it is a smaller batch, but one" if len(batch) < len(batches[0]) else ""
        yield f"the batch of step {s}, samples {batch[0]} to {batch[-1]}, is lost{smaller}"
    for rank, part in enumerate(steps[s]):
        for sample in part:
            if sample not in batch:
                yield (f"in step {s} rank {rank} takes sample {sample}, which is of step {sample // len(batches[0])}; "
                       f"the batch of step {s} is samples {batch[0]} to {batch[-1]}")  # fmt: skip
    counts = Counter(sample for part in steps[s] for sample in part)
    for sample, count in counts.items():
        if count > 1:
            yield f"sample {sample} is taken {count} times in step {s}; each is to count once"
    for sample in batch:
        if not counts[sample]:
            yield f"sample {sample} is in no part: step {s} has {len(batch)} samples for {len(steps[s])} ranks"
    sizes = [len(part) for part in steps[s]]
    if max(sizes) - min(sizes) > 1:
        yield (f"the parts of step {s} have {', '.join(map(str, sizes))} samples: all wait for the largest; sizes are "
               "to differ by at most one")  # fmt: skip


def plan_of(inputs: Vectors) -> list[list[range]]:
    """Return the plan for one_process, by step and rank, from the sizes of its parts."""
    ends = list(itertools.accumulate(inputs["parts"].tolist(), initial=0))
    parts = [range(start, stop) for start, stop in itertools.pairwise(ends)]
    return [parts[i : i + RANKS] for i in range(0, len(parts), RANKS)]


def is_first_right(run: Run) -> bool:
    """Whether the gradient of the first update is the mean over the samples of the first step."""
    inputs, length = run.inputs[0], run.case.length
    batch = [sample for part in plan_of(inputs)[0] for sample in part]
    return is_close(run.results[0]["used"][:length], inputs["x"] - inputs["samples"].reshape(-1, length)[batch].mean(0))


def explain_one_process(inputs: Vectors, result: Vectors) -> Iterator[str]:
    """Yield the updates of the oracle in which samples have wrong weights."""
    x0, length, plan = inputs["x"], inputs["x"].numel(), plan_of(inputs)
    samples = inputs["samples"].reshape(-1, length)
    before, used = (result[name].reshape(-1, length) for name in ("before", "used"))
    if len(used) > len(plan):
        yield (f"one_process made {len(used)} updates in {len(plan)} steps, one for each part; the samples of a step "
               "make one gradient, and one update")  # fmt: skip
    for s, parts in enumerate(plan[: len(used)]):
        begin, batch = f"one_process, step {s}:", [sample for part in parts for sample in part]
        if used[s].isnan().any():
            yield f"{begin} the gradient is NaN: gradient() was asked for the mean of a part without samples"
        if is_close(used[s], before[s] - samples[batch].mean(0)):
            continue
        means = torch.stack([samples[part].mean(0) for part in parts if part])
        if is_close(used[s], before[s] - means.mean(0)):
            yield f"{begin} each part got the same weight; expected the same weight for each of the samples"
        if s and is_close(used[s], x0 - samples[batch].mean(0)):
            yield f"{begin} the gradient was taken at the first x; take it when the updates before have been made"
        found = coefficients(before[s] - used[s], list(samples)) or []
        taken = [i for i, a in enumerate(found) if a]
        yield f"{begin} the gradient is that of samples {taken}; expected the mean over samples {batch}"
    if len(used) < len(plan):
        yield f"one_process made {len(used)} updates in {len(plan)} steps; expected one in each"


# What verify is asked


def draw_replicas(case: Case, chance: random.Random) -> Vectors:
    """Return, in random order, two trials of each kind: an oracle, and the x of each of several replicas."""
    eps = torch.finfo(case.dtype).eps
    drawn = [(sign, kind) for sign in (-1, 1) for kind in range(len(_VERDICTS))]
    chance.shuffle(drawn)
    oracles, trials = [], []
    for sign, kind in drawn:
        oracle = normal(case.length, case.dtype, chance)
        least = int(oracle.abs().argmin())
        oracle[least] *= 1e-9
        if kind == NEGATIVE:
            oracle = -oracle.abs()
        size = oracle.abs().max()
        x = oracle * (1 + 2 * eps * normal(case.length, case.dtype, chance).sign())
        if kind == NEAR_0:
            x[least] += 4 * eps
        elif kind == FAR:
            x = oracle + 0.01 * size * normal(case.length, case.dtype, chance).sign()
        elif kind == NAN:
            x = torch.full_like(oracle, torch.nan)
        elif kind == ONE_FAR:
            x[chance.randrange(case.length)] += sign * 100 * _tolerance(case) * size
        xs = x.repeat(REPLICAS, 1)
        if kind == NOT_ALIKE:
            rank, i = chance.randrange(REPLICAS), chance.randrange(case.length)
            xs[rank, i] = torch.nextafter(xs[rank, i], torch.tensor(torch.inf, dtype=case.dtype))
        oracles.append(oracle)
        trials.append(xs.flatten())
    kinds = torch.tensor([kind for _, kind in drawn])
    return {"oracles": torch.cat(oracles), "kinds": kinds, "replicas": torch.cat(trials)}


def ask(verify: Callable[..., Any], inputs: Vectors, case: Case) -> Vectors:
    """Return what verify says of each trial. Raises Fault if it says nothing."""
    oracles = inputs["oracles"].view(-1, case.length)
    trials = inputs["replicas"].view(len(oracles), REPLICAS, case.length)
    verdicts = []
    for xs, oracle in zip(trials, oracles, strict=True):
        returned = verify(list(xs), oracle.clone(), _tolerance(case))
        if not isinstance(returned, bool) and not (isinstance(returned, torch.Tensor) and returned.numel() == 1):
            raise Fault("returned", f"verify returned {kind_of(returned)}; expected True or False")
        verdicts.append(bool(returned))
    return {"verdicts": torch.tensor(verdicts)}


def judges(run: Run, *kinds: int) -> bool:
    """Whether verify judges replicas of these kinds rightly."""
    return all(_judges(run.inputs[0], run.results[0], kind) for kind in kinds)


def _judges(inputs: Vectors, result: Vectors, kind: int) -> bool:
    _, (expected, _) = [*_VERDICTS.items()][kind]
    return bool((result["verdicts"][inputs["kinds"] == kind].bool() == expected).all())


def explain_verdicts(inputs: Vectors, result: Vectors) -> Iterator[str]:
    """Yield the kinds of replicas that verify judges wrongly."""
    for kind, (replicas, (expected, why)) in enumerate(_VERDICTS.items()):
        if not _judges(inputs, result, kind):
            yield f"verify returned {not expected} for replicas that are {replicas}; expected {expected}: {why}"


def _tolerance(case: Case) -> float:
    return TOLERANCE if case.dtype == torch.float32 else TOLERANCE**2
