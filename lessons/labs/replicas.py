"""The replicas that `verify` of lab 3 is asked about: what it must say of them, and why."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lessons.lab import Case, Fault, Vectors, name_kind, normal

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
_, _NEAR_0, _NOT_ALIKE, _FAR, _NAN, _ONE_FAR, _NEGATIVE = range(len(_VERDICTS))


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
        if kind == _NEGATIVE:
            oracle = -oracle.abs()
        size = oracle.abs().max()
        x = oracle * (1 + 2 * eps * normal(case.length, case.dtype, chance).sign())
        if kind == _NEAR_0:
            x[least] += 4 * eps
        elif kind == _FAR:
            x = oracle + 0.01 * size * normal(case.length, case.dtype, chance).sign()
        elif kind == _NAN:
            x = torch.full_like(oracle, torch.nan)
        elif kind == _ONE_FAR:
            x[chance.randrange(case.length)] += sign * 100 * _tolerance(case) * size
        xs = x.repeat(REPLICAS, 1)
        if kind == _NOT_ALIKE:
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
            raise Fault("returned", f"verify returned {name_kind(returned)}; expected True or False")
        verdicts.append(bool(returned))
    return {"verdicts": torch.tensor(verdicts)}


def explain_verdicts(inputs: Vectors, result: Vectors) -> Iterator[str]:
    """Yield which replicas verify has judged wrongly."""
    for kind, (replicas, (expected, why)) in enumerate(_VERDICTS.items()):
        if (result["verdicts"][inputs["kinds"] == kind].bool() != expected).any():
            yield f"verify returned {not expected} for replicas that are {replicas}; expected {expected}: {why}"


def _tolerance(case: Case) -> float:
    return TOLERANCE if case.dtype == torch.float32 else TOLERANCE**2
