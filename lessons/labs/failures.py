"""Lab 13: failures. What a checkpoint must hold, when to write it, and a server that does not wait for who is late."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isclose, sqrt
from types import SimpleNamespace
from typing import Any

import torch

from lessons.failures import Training
from lessons.lab import Case, Descent, Fault, Lab, Run, Vectors, check_like, is_close, kind_of, normal
from lessons.sums import are_all, coefficients, describe

SERVER, LR, SAMPLES = 0, 0.1, 8
STATE = {  # what a checkpoint must hold, and what is wrong without it
    "x": "the training begins anew",
    "velocity": "momentum begins anew, and the next steps are too short",
    "order": "the rest of the epoch takes other samples, some of them again",
    "position": "the epoch begins again, with samples that have been taken",
    "random": "dropout, and the next orders, are drawn as at the start",
}
INTERVALS: dict[str, Callable[[float, float, int], float]] = {  # wrong ones
    "a failure loses half an interval on average, not all of one": lambda C, L, N: sqrt(C * L / N),
    "this is right for one machine; of N machines one dies N times as often": lambda C, L, N: sqrt(2 * C * L),
    "one of N machines dies more often, not more seldom: divide by N": lambda C, L, N: sqrt(2 * C * L * N),
    "these are seconds squared: take the root": lambda C, L, N: 2 * C * L / N,
    "divide the time between failures by N, under the root": lambda C, L, N: sqrt(2 * C * L) / N,
}
_ENOUGH = (
    1.02  # times the least that is lost: among the drawn failures it differs by less from one interval to the next
)


@dataclass(frozen=True)
class Task(Case):
    """So many steps of `collect`, on `n` ranks."""

    b: int = 1
    steps: int = 6

    def __str__(self) -> str:
        return f"{super().__str__()}, b = {self.b}"


class Failures(Lab):
    """The student writes `save(training)`, `interval(save_s, life_s, N)`, `collect(transport, x, update, t, b)`.

    A worker's loss for step t is |x - c_t|^2 / 2, so a gradient tells whose it is, and for which step.
    """

    name = "failures"
    functions = ("save", "interval", "collect")
    cases = (Case(1, 24, function="save"), Case(1, 0, function="interval"), Task(4, 100), Task(3, 60, b=0),
             Task(5, 100, b=2), Task(6, 150, torch.float64), Task(2, 50, b=0))  # fmt: skip
    scored = Task(5, 1_000, steps=12)
    real = Task(4, 100)
    formulas = ("2 P + the order + the random state", "until its (W - b)th gradient has come, from ANY")

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        inputs = {"x": normal(case.length, case.dtype, chance), "seed": torch.tensor(chance.getrandbits(30)),
                  "samples": normal(SAMPLES * case.length, case.dtype, chance).view(SAMPLES, -1)}  # fmt: skip
        if isinstance(case, Task):
            shape = case.n - 1, case.steps, case.length
            c = normal(case.n * case.steps * case.length, case.dtype, chance).view(case.n, case.steps, -1)
            paces = [[chance.uniform(9e-3, 11e-3) * chance.choice([1] * 9 + [5]) for _ in row] for row in c]
            return [
                inputs | {"c": c},
                *({"x": inputs["x"], "c": c[k], "paces": torch.tensor(paces[k])} for k in range(1, case.n)),
            ]
        asked = [
            (C := chance.uniform(10, 100), C * chance.uniform(200, 2000) * (N := 4 ** chance.randint(1, 5)), N)
            for _ in range(5)
        ]
        asked = torch.tensor(asked, dtype=torch.float64)
        lasted = torch.empty(5, 20_000, dtype=torch.float64).exponential_(
            generator=torch.Generator().manual_seed(int(inputs["seed"]))
        )
        return [inputs | {"asked": asked, "lasted": lasted * (asked[:, 1] / asked[:, 2])[:, None]}]

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if not isinstance(case, Task):
            return _die(yours.save, inputs) if case.function == "save" else _ask(yours.interval, inputs)
        if transport.rank != SERVER:
            return _work(transport, inputs, case.steps)
        descent = Descent(transport.allocate(case.length, case.dtype).copy_(inputs["x"]), LR)

        def update(g: torch.Tensor) -> None:
            descent.update(g)
            for fault in _explain_steps(case, inputs["c"], descent.result()):  # here, for what follows may never end
                raise Fault("wrong", fault)

        yours.collect(transport, descent.x, update, 0, case.b)
        saved = yours.save(Training(inputs["x"], inputs["samples"], 0)).values()
        return descent.result() | {"saved": torch.tensor(sum(torch.as_tensor(one).nbytes for one in saved))}

    def find_faults(self, run: Run) -> Iterator[str]:
        if run.case.function == "interval":
            yield from _explain_intervals(run.inputs[0], run.results[0]["answers"].tolist())
        if isinstance(run.case, Task):
            yield from _explain_steps(run.case, run.inputs[SERVER]["c"], run.results[SERVER])
            yield from _explain_answers(run, run.case)

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        right = self.right_so_far(run.case.function or "collect")
        for k in range(1, run.case.n) if kind == "deadlock" else ():
            if len(sent := run.of_rank(k)) > sum(one.dst == k for one in run.of_rank(SERVER)):
                why = (
                    "was not answered: who is late is, too"
                    if sent[-1].arrived
                    else "never taken: all say goodbye first"
                )
                yield f"; gradient {len(sent)} of rank {k} {why}{right}"
        yield right

    def costs(self, run: Run) -> dict[str, float]:
        assert isinstance(run.case, Task)
        ends = [max(one.sent for one in run.of_rank(SERVER) if one.dst == k) for k in range(1, run.case.n)]
        costs = {
            "bytes of a checkpoint": int(run.results[SERVER]["saved"]),
            "virtual seconds": min(ends) / run.case.steps,
        }
        return costs


def goodput(interval_s: float, save_s: float, lasted: torch.Tensor) -> float:
    """Return the part of the time that trains for good, where failures [n] come after so many seconds without one.

    What follows the last save before a failure is lost.
    """
    return float((lasted // (interval_s + save_s)).sum() * interval_s / lasted.sum())


def _die(save: Callable[[Training], Any], inputs: Vectors) -> Vectors:
    """Continue in a new training what was saved of one that has died. Raises Fault."""

    def train(steps: int) -> Training:
        training = Training(inputs["x"], inputs["samples"], int(inputs["seed"]))
        for _ in range(steps):
            training.step()
        return training

    training, then, new = train(11), train(11), train(0)  # 11: in the second epoch
    if not isinstance(saved := save(training), dict):
        raise Fault("returned", f"save returned {kind_of(saved)}; expected a dict, of attributes by name")
    training.step()  # while the file is written
    vars(new).update(saved)
    for name, lost in STATE.items():
        if name not in saved:
            raise Fault("wrong", f"save: {name} is not saved; without it {lost}")
        now, was, later = (torch.as_tensor(getattr(one, name)) for one in (new, then, training))
        if not now.equal(was):
            changed = "is that of a step later: it is changed in place while the file is written; save its .clone()"
            raise Fault("wrong", f"save: {name} {changed if now.equal(later) else 'is not what it was'}")
    return {}


def _ask(interval: Callable[[float, float, int], Any], inputs: Vectors) -> Vectors:
    answers = [interval(save_s, life_s, int(N)) for save_s, life_s, N in inputs["asked"].tolist()]
    if other := [one for one in answers if not isinstance(one, (int, float)) or not 0 < one < inf]:
        raise Fault("returned", f"interval returned {other[0]!r}; expected seconds, a number above 0")
    return {"answers": torch.tensor(answers, dtype=torch.float64)}


def _explain_intervals(inputs: Vectors, answers: Sequence[float]) -> Iterator[str]:
    """Yield what is wrong with intervals that lose more than they must."""
    asked = [(save_s, life_s, int(N)) for save_s, life_s, N in inputs["asked"].tolist()]
    for (save_s, life_s, N), lasted, answer in zip(asked, inputs["lasted"], answers, strict=True):
        best = sqrt(2 * save_s * life_s / N)
        yours, least = (100 - 100 * goodput(one, save_s, lasted) for one in (answer, best))
        if yours > _ENOUGH * least:
            begin = (f"interval({save_s:.3g}, {life_s:.3g}, {N}) is {answer:.4g}: in {len(lasted):,} failures "
                     f"{yours:.1f} % of the time is lost, with the best {least:.1f} %")  # fmt: skip
            for text, wrong in INTERVALS.items():
                if all(isclose(wrong(*one), said, rel_tol=1e-3) for one, said in zip(asked, answers, strict=True)):
                    yield f"{begin}; {text}"
            yield f"{begin}; save more {'seldom' if answer < best else 'often'}"


def _work(transport: Any, inputs: Vectors, steps: int) -> Vectors:
    """Be a worker; return all x that it had, and their numbers. Raises Fault."""
    x, t = inputs["x"].clone(), 0
    had, numbers = [x.clone()], [0]
    while t < steps:
        transport.sleep(float(inputs["paces"][t]))
        transport.isend(x - inputs["c"][t], SERVER, "gradient")
        with transport.recv(SERVER, "parameters") as answer:
            begin = f"rank {transport.rank} sent its gradient for step {t}, and was sent"
            check_like("answer", begin, answer.vector, x)
            if not t < answer.n <= steps:
                raise Fault("answer", f"{begin} n = {answer.n}; expected the number of a later step, whose x it is: "
                                      "who is in time is answered when the step is made")  # fmt: skip
            x.copy_(answer.vector)
            t = answer.n
        had.append(x.clone())
        numbers.append(t)
    transport.isend(None, SERVER, "goodbye")
    return {"had": torch.stack(had), "numbers": torch.tensor(numbers)}


def _explain_steps(case: Task, c: torch.Tensor, result: Vectors) -> Iterator[str]:
    """Yield what the steps were made with, if not with the mean of gradients for them; `c` by worker and step."""
    xs, used = (result[name].view(-1, case.length) for name in ("before", "used"))
    wanted, taken = case.n - 1 - case.b, set[tuple[int, int]]()
    for t, g in enumerate(used[: case.steps]):
        keys = [(k, s) for k in range(1, case.n) for s in range(t + 1)]
        found = coefficients(g, [xs[s] - c[k, s] for k, s in keys]) or ()
        parts = {key: a for key, a in zip(keys, found, strict=False) if a}
        for k, s in parts:
            if s < t:
                why = "begin each step with none" if (k, s) in taken else "it is late, x has changed since: drop it"
                yield f"{case}: rank {k}'s gradient for step {s} is in step {t}; {why}"
        if parts and len(parts) != wanted:
            yield f"{case}: step {t} has {len(parts)} gradients; expected the first W - b = {wanted} of {case.n - 1}"
        if not parts or not are_all([*parts.values()], 1 / wanted):
            what = describe([*parts.values()], "g of rank", [k for k, _ in parts]) if parts else "something else"
            yield f"{case}: step {t} is {what}; expected the mean of {wanted} gradients"
        if not is_close(xs[t + 1], xs[t] - LR * g):
            yield f"{case}: x was changed after step {t}, and not by update"
        taken |= parts.keys()


def _explain_answers(run: Run, case: Task) -> Iterator[str]:
    """Yield what is wrong with what the server has sent to workers."""
    xs, used = (run.results[SERVER][name].view(-1, case.length) for name in ("before", "used"))
    if len(used) != case.steps:
        yield f"{case}: collect made {len(used)} updates; expected {case.steps}"
        return
    if any(one.span for one in run.of_rank(SERVER)):
        yield f"{case}: collect sent x itself, which the next update may change on its way: send a copy, x.clone()"
    answered = []  # by gradient: whose and for which step it was, when it came, when its answer left, and its number
    for k in range(1, case.n):
        numbers, had = run.results[k]["numbers"].tolist(), run.results[k]["had"]
        for t, x in zip(numbers, had, strict=True):
            if not is_close(x, xs[t]):
                yield f"{case}: rank {k} was sent another x than that of step {t}, whose number it had"
        answers = [one for one in run.of_rank(SERVER) if one.dst == k]
        for s, n, gradient, answer in zip(numbers, numbers[1:], run.of_rank(k), answers, strict=False):
            answered.append((k, s, gradient.arrived or 0.0, answer.sent, n))
    for k, s, came, left, _ in answered:
        made = min(left for *_, left, n in answered if n > s)
        if left > max(came, made):
            yield (f"{case}: rank {k}'s gradient for step {s} came at {1e3 * came:.1f} ms, was late, and was answered at "
                   f"{1e3 * left:.1f} ms: answer who is late at once")  # fmt: skip
