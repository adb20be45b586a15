"""Lab 13: failures. What a checkpoint must hold, when to write it, and a server that does not wait for who is late."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, sqrt
from types import SimpleNamespace
from typing import Any

import torch

from lessons.failures import SERVER, Training
from lessons.lab import Case, Descent, Fault, Figure, Lab, Run, Vectors, check_like, first, is_close, kind_of, normal
from lessons.sums import are_all, coefficients, describe

LR, PACE = 0.1, 10e-3  # seconds that a worker computes, before chance has stretched them
SAVED = {  # what a checkpoint must hold, and what is wrong without it
    "x": "the training begins anew",
    "velocity": "the next steps are shorter, as at the start: momentum begins with 0",
    "order": "the rest of the epoch takes other samples: some twice, some never",
    "position": "the epoch begins again, with samples that have been taken",
    "random": "dropout, and the next orders, are drawn as at the start",
}
INTERVALS: Mapping[str, Callable[[float, float, int], float]] = {  # that are wrong
    "a failure loses half an interval on average, not all of one": lambda C, L, N: sqrt(C * L / N),
    "so long is it for one machine; of N machines one dies N times as often": lambda C, L, N: sqrt(2 * C * L),
    "of more machines one dies more often, not more seldom: divide by N": lambda C, L, N: sqrt(2 * C * L * N),
    "these are seconds squared: take the root": lambda C, L, N: 2 * C * L / N,
    "not the interval is divided by N: the time between two failures is, under the root":
        lambda C, L, N: sqrt(2 * C * L) / N,
    "these are minutes: return seconds": lambda C, L, N: sqrt(2 * C * L / N) / 60,
}  # fmt: skip
_ENOUGH = 1.02  # as much lost as with the best interval: the drawn failures differ from the mean by less


@dataclass(frozen=True)
class Task(Case):
    """One run of `collect` on `n` ranks."""

    b: int = 1
    steps: int = 6

    def __str__(self) -> str:
        return f"{super().__str__()}, b = {self.b}"


class Failures(Lab):
    """The student writes `save(training)`, `interval(save_s, life_s, N)`, `collect(transport, x, update, steps, b)`.

    A worker's loss for step t is |x - c_t|^2 / 2, so a gradient tells whose it is, and for which step.
    """

    name = "failures"
    functions = ("save", "interval", "collect")
    cases = (Case(1, 24, function="save"), Case(1, 0, function="interval"), Task(4, 100), Task(3, 60, b=0),
             Task(5, 100, b=2), Task(6, 150, torch.float64), Task(2, 50, b=0))  # fmt: skip
    scored = Task(5, 1_000, steps=24)
    real = Task(4, 100)
    formulas = ("2 P + the order + the random state", "1 for each gradient", "P for each gradient",
                "until its (W - b)th gradient has come")  # fmt: skip

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        if case.function == "interval":
            asked = [(chance.uniform(10, 100), chance.uniform(2e6, 2e8), chance.choice((4, 64, 512))) for _ in range(5)]
            means = torch.tensor([life / N for _, life, N in asked], dtype=torch.float64)
            lasted = torch.rand(20_000, len(asked), generator=_generator(chance), dtype=torch.float64).log() * -means
            return [{"asked": torch.tensor(asked, dtype=torch.float64), "lasted": lasted.T}]
        x, samples = normal(case.length, case.dtype, chance), normal(8 * case.length, case.dtype, chance)
        inputs: list[Vectors] = [{"x": x, "samples": samples.view(8, -1), "seed": torch.tensor(chance.getrandbits(30))}]
        for _ in range(1, case.n):
            assert isinstance(case, Task)
            paces = [PACE * chance.uniform(0.9, 1.1) * (5 if chance.random() < 0.1 else 1) for _ in range(case.steps)]
            c = normal(case.steps * case.length, case.dtype, chance).view(case.steps, -1)
            inputs.append({"x": x, "c": c, "paces": torch.tensor(paces, dtype=torch.float64)})
        return inputs

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if case.function == "save":
            if fault := first(_explain_save(yours.save, inputs)):
                raise Fault("wrong", f"save: {fault}")
            return {}
        if case.function == "interval":
            return {"answers": torch.tensor([_ask(yours.interval, *one) for one in inputs["asked"].tolist()])}
        assert isinstance(case, Task)
        if transport.rank != SERVER:
            return _work(transport, inputs, case.steps)
        descent = Descent(transport.allocate(case.length, case.dtype).copy_(inputs["x"]), LR)
        yours.collect(transport, descent.x, descent.update, case.steps, case.b)
        saved = _saved(yours.save, Training(inputs["x"], inputs["samples"], 0)).values()
        return descent.result() | {"checkpoint": torch.tensor(sum(torch.as_tensor(one).nbytes for one in saved))}

    def find_faults(self, run: Run) -> Iterator[str]:
        if run.case.function == "interval":
            yield from _explain_intervals(run.inputs[0], run.results[0]["answers"].tolist())
        if isinstance(run.case, Task):
            yield from (f"{run.case}: {text}" for text in _explain_collect(run, run.case))

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        right = self.right_so_far(run.case.function or "collect")
        for k in range(1, run.case.n) if kind == "deadlock" else ():
            sent, answers = run.of_rank(k), sum(one.dst == k for one in run.of_rank(SERVER))
            if len(sent) > answers and sent[-1].arrived is None:
                yield f"; rank {k}'s gradient {len(sent)} was never taken: take those that are late for the last step{right}"
            if len(sent) > answers:
                yield f"; rank {k}'s gradient {len(sent)} was taken, and not answered: answer who is late, too{right}"
        yield right

    def costs(self, run: Run) -> dict[str, float]:
        assert isinstance(run.case, Task)
        answers = [[one.sent for one in run.of_rank(SERVER) if one.dst == k] for k in range(1, run.case.n)]
        costs = {"messages of the server": run.messages[SERVER], "bytes of the server": run.nbytes[SERVER],
                 "virtual seconds": min(map(max, answers))}  # fmt: skip
        by_step = {name: cost / run.case.steps for name, cost in costs.items()}
        return {"bytes of a checkpoint": int(run.results[SERVER]["checkpoint"])} | by_step

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "bytes of a checkpoint":
            yield "what does not change, such as the samples, a new Training has"
        if missed[0].name == "virtual seconds":
            yield "take first what comes first: recv(ANY, 'gradient')"


def goodput(interval_s: float, save_s: float, lasted: torch.Tensor) -> float:
    """Return which part of the time trains for good, if failures come after times [failures] without one, in seconds.

    What follows the last save before a failure is lost.
    """
    return float((lasted // (interval_s + save_s)).sum() * interval_s / lasted.sum())


def _generator(chance: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(chance.getrandbits(62))


# save


def _saved(save: Callable[[Training], Any], training: Training) -> Mapping[str, Any]:
    """Return what save returns. Raises Fault."""
    saved = save(training)
    if not isinstance(saved, dict) or not all(isinstance(one, (torch.Tensor, int)) for one in saved.values()):
        what = kind_of(saved) if not isinstance(saved, dict) else f"a dict of {', '.join(map(kind_of, saved.values()))}"
        raise Fault("returned", f"save returned {what}; expected a dict of tensors and numbers")
    if other := [name for name in saved if name not in vars(training)]:
        raise Fault("returned", f"save returned {other[0]!r}, which is no attribute of Training")
    return saved


def _explain_save(save: Callable[[Training], Any], inputs: Vectors) -> Iterator[str]:
    """Yield what a training that died, and goes on in a new one, has lost."""

    def begin(steps: int) -> Training:
        training = Training(inputs["x"], inputs["samples"], int(inputs["seed"]))
        for _ in range(steps):
            training.step()
        return training

    n = len(inputs["samples"]) + 3  # in the middle of the second epoch
    training, then, new = begin(n), vars(begin(n)), begin(0)
    saved = _saved(save, training)
    for _ in range(2):  # while the file is written
        training.step()
    vars(new).update(saved)
    for name, lost in SAVED.items():
        now, expected = (torch.as_tensor(values[name]) for values in (vars(new), then))
        if name not in saved:
            yield f"{name} is not saved; then {lost}"
        if now.equal(torch.as_tensor(vars(training)[name])) and not now.equal(expected):
            yield (f"{name} is not that of the moment of the save, but 2 steps later: step() changes it in place while "
                   "the file is written; save a copy, .clone()")  # fmt: skip
        if not now.equal(expected):
            yield f"{name} is not what it was"


# interval


def _ask(interval: Callable[[float, float, int], Any], save_s: float, life_s: float, N: float) -> float:
    said = interval(save_s, life_s, int(N))
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 < said < inf:
        raise Fault("returned", f"interval({save_s:.3g}, {life_s:.3g}, {N:.0f}) returned {said!r}; expected seconds, a "
                                "number above 0")  # fmt: skip
    return float(said)


def _explain_intervals(inputs: Vectors, answers: Sequence[float]) -> Iterator[str]:
    asked = [(save_s, life_s, int(N)) for save_s, life_s, N in inputs["asked"].tolist()]
    for (save_s, life_s, N), lasted, answer in zip(asked, inputs["lasted"], answers, strict=True):
        best = sqrt(2 * save_s * life_s / N)
        yours, least = (1 - goodput(one, save_s, lasted) for one in (answer, best))
        if yours <= _ENOUGH * least:
            continue
        begin = (f"interval({save_s:.3g}, {life_s:.3g}, {N}) is {answer:.4g}: of the time of {len(lasted):,} drawn "
                 f"failures {100 * yours:.1f} % is lost, and {100 * least:.1f} % with the best interval")  # fmt: skip
        for text, wrong in INTERVALS.items():
            if all(isclose(wrong(*one), said, rel_tol=1e-3) for one, said in zip(asked, answers, strict=True)):
                yield f"{begin}; {text}"
        saving = 100 * save_s / (answer + save_s)
        yield f"{begin}; {saving:.1f} % goes into saves: save more {'seldom' if answer < best else 'often'}"


# collect


def _work(transport: Any, inputs: Vectors, steps: int) -> Vectors:
    """Be a worker; return all x that it had, and their numbers. Raises Fault."""
    x, t = inputs["x"].clone(), 0
    had, numbers = [x.clone()], [0]
    while t < steps:
        transport.sleep(float(inputs["paces"][t]))
        transport.isend(x - inputs["c"][t], SERVER, "gradient", n=t)
        with transport.recv(SERVER, "parameters") as answer:
            begin = f"collect: rank {transport.rank} sent its gradient for step {t}, and was sent"
            check_like("answer", begin, answer.vector, x)
            if not t < answer.n <= steps:
                raise Fault("answer", f"{begin} x with n = {answer.n}; expected the number of a later step: who is in "
                                      "time is answered when the step has been made, with the next number")  # fmt: skip
            x.copy_(answer.vector)
            t = answer.n
        had.append(x.clone())
        numbers.append(t)
    return {"had": torch.stack(had), "numbers": torch.tensor(numbers)}


def _explain_collect(run: Run, case: Task) -> Iterator[str]:
    """Yield what is wrong in the updates of the server, and in what it has sent."""
    xs, used = (run.results[SERVER][name].view(-1, case.length) for name in ("before", "used"))
    wanted, numbers = case.n - 1 - case.b, [[], *(result["numbers"].tolist() for result in run.results[1:])]
    if len(used) != case.steps:
        yield f"collect made {len(used)} updates; expected {case.steps}, one a step"
    if any(one.span for one in run.of_rank(SERVER)):
        yield "collect sent x itself, which the next update changes on its way: send a copy, x.clone()"
    gradients = {(s, k): xs[s] - run.inputs[k]["c"][s] for k in range(1, case.n) for s in numbers[k][:-1]}
    taken: dict[tuple[int, int], int] = {}  # the gradients that are in a step, and in which
    for t, g in enumerate(used):
        parts = {key: gradient for key, gradient in gradients.items() if key[0] <= t}
        found = coefficients(g, [*parts.values()])
        if found is None:
            yield f"step {t} is made with something else than gradients for it"
            return
        for (s, k), a in zip(parts, found, strict=True):
            if a and (s, k) in taken:
                yield f"rank {k}'s gradient for step {s} is in step {t}, too: begin each step with none"
            if a and s < t:
                yield f"rank {k}'s gradient for step {s} is in step {t}: it is late, x has changed since; drop it"
            if a:
                taken[s, k] = t
        weights = [a for a in found if a]
        if len(weights) != wanted:
            yield f"step {t} is made with {len(weights)} gradients; expected the first W - b = {wanted} of {case.n - 1}"
        if not are_all(weights, 1 / wanted):
            ranks = [k for (_, k), a in zip(parts, found, strict=True) if a]
            text = describe(weights, "g of rank", ranks)
            yield f"step {t} is made with {text}; expected the mean of these {wanted}"
        if not is_close(xs[t + 1], xs[t] - LR * g):
            yield f"x is changed after step {t}, and not by update"
    for k in range(1, case.n):
        for t, x in zip(numbers[k], run.results[k]["had"], strict=True):
            if not is_close(x, xs[t]):
                yield f"rank {k} was sent another x than that of step {t}, whose number it had"
        answers = [one for one in run.of_rank(SERVER) if one.dst == k]
        for s, gradient, answer in zip(numbers[k], run.of_rank(k), answers, strict=False):
            if (s, k) not in taken and answer.sent > (gradient.arrived or inf):
                yield (f"rank {k}'s gradient for step {s}, which is in no step, came at {1e3 * gradient.arrived:.1f} ms "
                       f"and was answered at {1e3 * answer.sent:.1f} ms: make a step with the first W - b, and answer "
                       "who comes later at once")  # fmt: skip
