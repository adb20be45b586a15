"""Lab 6: links. When a server is the wall, when a ring's latency is, and an all-reduce for short vectors."""

import math
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.lab import Case, Fault, Figure, Run, Sent, Vectors
from lessons.labs import clusters
from lessons.labs.clusters import CHOICES, RING, SERVER, TO_CHOOSE, TO_ESTIMATE, Cluster
from lessons.labs.ring import AllReduce, other_bits, wrong_ranks
from lessons.sums import are_all, coefficients, describe

ESTIMATES = {"seconds_of_server": SERVER, "seconds_of_ring": RING}
CHOOSE = "choose"
_ENOUGH = 1.01  # a choice that takes at most this many times as long as the fastest is right


class Links(AllReduce):
    """The student writes `seconds_of_server`, `seconds_of_ring`, `choose`, and `all_reduce(transport, vector)`.

    The first three are judged on clusters of many kinds, by the strategies' virtual seconds there. A case
    that names no function is one of `all_reduce`; the score is of `choose` as well.
    """

    name = "links"
    whole = "all_reduce"
    parts: ClassVar = {name: {"the latency": lambda run: _counts(run)[0],
                              "the bytes": lambda run: _counts(run)[1]}
                       for name in ESTIMATES} | {"all_reduce": {
        "all parts": lambda run: bool(run.sent and run.case.n > 1) and all(_has_all(run)),
        "the mean": lambda run: bool(run.sent) and not (wrong_ranks(run) or run.damage),
    }}  # fmt: skip
    functions = (*ESTIMATES, CHOOSE, "all_reduce")
    cases = (*(Case(1, 0, function=name) for name in (*ESTIMATES, CHOOSE)), Case(2, 8), Case(4, 12),
             Case(8, 40, torch.float64), Case(1, 5), Case(4, 1), Case(2, 0), Case(4, 10_000))  # fmt: skip
    scored = Case(8, 64)
    real = Case(4, 1_000)
    formulas = ("of the fastest in each cluster", "log2 N", "log2 N",
                "log2 N (latency + P / bandwidth), by log2 N messages")  # fmt: skip

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        answers = [_ask(yours, case.function, cluster) for cluster in clusters_of(case)]
        result = {"answers": torch.tensor(answers, dtype=torch.float64)}
        return result if case.function else result | super().run(yours, transport, case, inputs)

    def find_faults(self, run: Run) -> Iterator[str]:
        function, asked = run.case.function, clusters_of(run.case)
        if choice := ESTIMATES.get(function):
            answers = run.results[0]["answers"].view(-1, 3)
            yield from (f"{function}: {text}" for text in clusters.explain_estimates(choice, asked[::3], answers))
        elif asked and max(clusters.ratios(asked, choices_of(run))) > _ENOUGH:
            yield from (f"choose: {text}" for text in clusters.explain_choices(asked, choices_of(run)))
        if function:
            return
        if wrong := wrong_ranks(run):
            yield from _explain_vector(run, wrong[0])
        yield from other_bits(f"all_reduce: {run.case}", "mean", [result["vector"] for result in run.results])

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "damage" and run.results:  # without results it is another damage
            yield "; two that wait before they receive are a deadlock: send vector.clone(), which nobody changes"

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        return "the vector" if vector.numel() == case.length else f"{vector.numel()} elements"

    def costs(self, run: Run) -> dict[str, float]:
        found = clusters.ratios(clusters_of(run.case), choices_of(run))
        costs = {"time of your choices": sum(found) / len(found)} | super().costs(run)
        del costs["bytes of a rank"]  # a ring sends fewer
        return costs

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "messages of a rank" and run.rounds < math.log2(run.case.n):
            yield "yours is faster here, for a message costs its sender nothing but the time on the card"


def _ask(yours: SimpleNamespace, function: str, cluster: Cluster) -> float:
    """Return what a student's function says of a cluster: seconds, or the number of its choice. Raises Fault."""
    if function in ESTIMATES:
        said = getattr(yours, function)(cluster.n, cluster.nbytes, cluster.bandwidth, cluster.latency)
        if isinstance(said, bool) or not isinstance(said, (int, float)) or not abs(said) <= sys.float_info.max:
            raise Fault("returned", f"{function} returned {said!r}; expected seconds, a number")
        return float(said)
    said = yours.choose(*cluster)
    if not isinstance(said, str) or said not in CHOICES:
        raise Fault("returned", f"choose returned {said!r}; expected one of {', '.join(map(repr, CHOICES))}")
    return list(CHOICES).index(said)


def _counts(run: Run) -> tuple[bool, bool]:
    """Return whether estimates grow as they should with the latency, and with the bytes."""
    answers = run.results[0]["answers"].view(-1, 3)
    return clusters.are_counted(ESTIMATES[run.case.function], clusters_of(run.case)[::3], answers)


def _has_all(run: Run) -> Iterator[bool]:
    """Yield for each rank whether the vectors of all ranks count alike in its own."""
    for result in run.results:
        found = coefficients(result["vector"], [inputs["vector"] for inputs in run.inputs]) or [0.0]
        yield bool(found[0]) and are_all(found, found[0])


def _explain_vector(run: Run, rank: int) -> Iterator[str]:
    case = run.case
    begin = f"all_reduce: {case}: rank {rank} ends with"
    found = coefficients(run.results[rank]["vector"], [inputs["vector"] for inputs in run.inputs])
    if found is None:
        yield f"{begin} something else than the mean of all {case.n} ranks"
        return
    if case.n > 1 and are_all(found, 1):
        yield f"{begin} the sum; expected the mean: divide by N, once"
    counts = [case.n * a for a in found]
    twice = any(round(count) > 1 for count in counts) and all(abs(count - round(count)) < 1e-2 for count in counts)
    shared = twice and any(abs(a - round(a)) > 1e-3 for a in found)  # a mean: how often each is in its sum
    text = f"({describe(counts)}) / {case.n}" if shared else describe(found)
    if missing := [str(k) for k, a in enumerate(found) if not a]:
        yield (f"{begin} {text}, without rank {', '.join(missing)}: after s rounds a rank can have the parts of "
               "2^s ranks, if both of a pair know different ones")  # fmt: skip
    alike = are_all(found, found[0])
    if alike and found[0] < 1 / case.n:
        yield f"{begin} {text}: every rank is in it once, but divided by {1 / found[0]:.3g}: divide by N once"
    which = "all" if alike else "some"
    yield f"{begin} {text}; expected each rank once, divided by {case.n}: {which} parts have come on several ways"


def clusters_of(case: Case) -> Sequence[Cluster]:
    """Return the clusters that the functions of a case are asked about."""
    if case.function in ESTIMATES:
        return [variant for cluster in TO_ESTIMATE for variant in clusters.vary(cluster)]
    return TO_CHOOSE if case in (Links.scored, Case(1, 0, function=CHOOSE)) else ()


def choices_of(run: Run) -> list[str]:
    """Return what was chosen for each cluster."""
    names = list(CHOICES)
    return [names[int(i)] for i in run.results[0]["answers"].tolist()]
