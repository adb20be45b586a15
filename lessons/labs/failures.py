"""Lab 13: failures. What a checkpoint must hold, when to write it, and a server that does not wait for who is late."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isclose, sqrt
from types import SimpleNamespace
from typing import Any

import torch

from lessons.failures import Training
from lessons.lab import Case, Descent, Fault, Figure, Lab, Run, Vectors, check_like, is_close, kind_of, normal
from lessons.sums import are_all, coefficients, describe

SERVER, LR = 0, 0.1
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
    scored = Task(5, 1_000, steps=24)
    real = Task(4, 100)
    formulas = ("1 for each gradient", "P for each gradient", "until its (W - b)th gradient has come")

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        if not isinstance(case, Task):
            asked = [(chance.uniform(10, 100), chance.uniform(2e6, 2e8), chance.choice((4, 64, 512))) for _ in range(5)]
            generator = torch.Generator().manual_seed(seed := chance.getrandbits(30))
            lasted = torch.empty(5, 20_000, dtype=torch.float64).exponential_(generator=generator)
            lasted *= torch.tensor([[life_s / N] for _, life_s, N in asked])
            return [
                {
                    "x": normal(case.length, case.dtype, chance),
                    "samples": normal(8 * case.length, case.dtype, chance),
                    "seed": torch.tensor(seed),
                    "asked": torch.tensor(asked, dtype=torch.float64),
                    "lasted": lasted,
                }
            ]
        inputs: list[Vectors] = [{"x": normal(case.length, case.dtype, chance)}]
        for _ in range(1, case.n):
            c = normal(case.steps * case.length, case.dtype, chance).view(case.steps, -1)
            paces = [chance.uniform(9e-3, 11e-3) * chance.choice([1] * 9 + [5]) for _ in range(case.steps)]
            inputs.append(inputs[0] | {"c": c, "paces": torch.tensor(paces, dtype=torch.float64)})
        return inputs

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if case.function == "save":
            return _die(yours.save, inputs)
        if not isinstance(case, Task):
            return {"answers": _ask(yours.interval, inputs)}
        if transport.rank != SERVER:
            return _work(transport, inputs, case.steps)
        descent = Descent(transport.allocate(case.length, case.dtype).copy_(inputs["x"]), LR)
        yours.collect(transport, descent.x, descent.update, 0, case.b)
        return descent.result()

    def find_faults(self, run: Run) -> Iterator[str]:
        if run.case.function == "interval":
            yield from _explain_intervals(run.inputs[0], run.results[0]["answers"].tolist())
        if isinstance(run.case, Task):
            yield from (f"{run.case}: {text}" for text in _explain_collect(run, run.case))

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        right = self.right_so_far(run.case.function or "collect")
        for k in range(1, run.case.n) if kind == "deadlock" else ():
            if len(sent := run.of_rank(k)) > sum(one.dst == k for one in run.of_rank(SERVER)):
                yield f"; gradient {len(sent)} of rank {k} was not answered: who is late gets an answer, too{right}"
        yield right

    def costs(self, run: Run) -> dict[str, float]:
        assert isinstance(run.case, Task)
        ends = [max(one.sent for one in run.of_rank(SERVER) if one.dst == k) for k in range(1, run.case.n)]
        costs = {"messages of the server": run.messages[SERVER], "bytes of the server": run.nbytes[SERVER],
                 "virtual seconds": min(ends)}  # fmt: skip
        return {name: cost / run.case.steps for name, cost in costs.items()}

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "virtual seconds":
            yield "take first what comes first: recv(ANY, ...)"


def goodput(interval_s: float, save_s: float, lasted: torch.Tensor) -> float:
    """Return the part of the time that trains for good, where failures [n] come after so many seconds without one.

    What follows the last save before a failure is lost.
    """
    return float((lasted // (interval_s + save_s)).sum() * interval_s / lasted.sum())


def _die(save: Callable[[Training], Any], inputs: Vectors) -> Vectors:
    """Continue in a new training what was saved of one that has died. Raises Fault."""

    def train(steps: int) -> Training:
        training = Training(inputs["x"], inputs["samples"].view(8, -1), int(inputs["seed"]))
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


def _ask(interval: Callable[[float, float, int], Any], inputs: Vectors) -> torch.Tensor:
    answers = [interval(save_s, life_s, int(N)) for save_s, life_s, N in inputs["asked"].tolist()]
    if other := [one for one in answers if not isinstance(one, (int, float)) or not 0 < one < inf]:
        raise Fault("returned", f"interval returned {other[0]!r}; expected seconds, a number above 0")
    return torch.tensor(answers, dtype=torch.float64)


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
            if answer.n <= t:
                raise Fault("answer", f"{begin} x with n = {answer.n}; who is in time is answered when the step is "
                                      "made, and n is the number of the next")  # fmt: skip
            x.copy_(answer.vector)
            t = answer.n
        had.append(x.clone())
        numbers.append(t)
    transport.isend(None, SERVER, "goodbye")
    return {"had": torch.stack(had), "numbers": torch.tensor(numbers)}


def _explain_collect(run: Run, case: Task) -> Iterator[str]:
    """Yield what is wrong in the updates of the server, and in its answers."""
    xs, used = (run.results[SERVER][name].view(-1, case.length) for name in ("before", "used"))
    workers = [(k, result["numbers"].tolist(), result["had"]) for k, result in enumerate(run.results) if k]
    if len(used) != case.steps:
        yield f"collect made {len(used)} updates; expected {case.steps}"
        return
    if any(one.span for one in run.of_rank(SERVER)):
        yield "collect sent x itself, which the next update may change on its way: send a copy, x.clone()"
    for k, numbers, had in workers:
        for t, x in zip(numbers, had, strict=True):
            if not is_close(x, xs[t]):
                yield f"rank {k} was sent another x than that of step {t}, whose number it had"
    gradients = {(k, s): xs[s] - run.inputs[k]["c"][s] for k, numbers, _ in workers for s in numbers[:-1]}
    wanted, taken = case.n - 1 - case.b, set[tuple[int, int]]()
    for t, g in enumerate(used):
        found = coefficients(g, [*gradients.values()]) or ()
        parts = {part: a for part, a in zip(gradients, found, strict=False) if a}
        for k, s in parts:
            if s < t:
                why = "begin each step with none" if (k, s) in taken else "it is late, x has changed since: drop it"
                yield f"rank {k}'s gradient for step {s} is in step {t}; {why}"
        if parts and len(parts) != wanted:
            yield f"step {t} has {len(parts)} gradients; expected the first W - b = {wanted} of {case.n - 1}"
        if not parts or not are_all([*parts.values()], 1 / wanted) or not is_close(xs[t + 1], xs[t] - LR * g):
            what = describe([*parts.values()], "g of rank", [k for k, _ in parts]) if parts else "something else"
            yield f"step {t} is {what}; expected the mean of {wanted} gradients"
        taken |= parts.keys()
    for k, numbers, _ in workers:
        answers = [one for one in run.of_rank(SERVER) if one.dst == k]
        for s, gradient, answer in zip(numbers, run.of_rank(k), answers, strict=False):
            if (k, s) not in taken and answer.sent > (came := gradient.arrived or inf):
                yield (
                    f"rank {k}'s gradient for step {s}, which is not in it, came at {1e3 * came:.1f} ms and was "
                    f"answered at {1e3 * answer.sent:.1f} ms: W - b make a step, and who is late is answered at once"
                )
