"""Lab 13: failures. What a checkpoint must hold, when to write it, and a server that does not wait for late workers."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isclose, sqrt
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.failures import Training
from lessons.lab import Case, Fault, Lab, Run, Sent, Vectors, first
from lessons.sums import are_all, coefficients, describe
from lessons.values import Updater, check_like, is_close, kind_of, normal

SERVER, LR = 0, 0.1
START, STEPS = 2, 6  # of `collect`: the first step's number, as in a later epoch
LAST = START + STEPS
STATE = {  # what a checkpoint must hold, and the mistake without it
    "x": "the training begins anew",
    "velocity": "momentum begins anew, and the next steps are too short",
    "order": "the rest of the epoch takes other samples, some of them again",
    "position": "the epoch begins again, with samples that have been taken",
    "random": "dropout, and the next orders, are drawn as at the start",
}
INTERVALS: dict[str, Callable[[float, float, float], float]] = {  # wrong ones
    "a failure loses half an interval on average, not all of one": lambda C, L, N: sqrt(C * L / N),
    "this is right for one machine; of N machines one dies N times as often": lambda C, L, N: sqrt(2 * C * L),
    "one of N machines dies more often, not more seldom: divide by N": lambda C, L, N: sqrt(2 * C * L * N),
    "these are seconds squared: take the root": lambda C, L, N: 2 * C * L / N,
    "these are minutes; expected seconds": lambda C, L, N: sqrt(2 * C * L / N) / 60,
}
_ENOUGH = 1.03  # times what Young's interval loses: Daly's loses a little less


@dataclass(frozen=True)
class Task(Case):
    """The steps of `collect`, on `n` ranks."""

    b: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}, b = {self.b}"


class Failures(Lab):
    """The student writes `save(training)`, `interval(save_s, life_s, N)`, `collect(transport, x, update, t, b)`.

    A worker's loss for step t is |x - c_t|^2 / 2, so a gradient tells whose it is, and for which step.
    """

    name = "failures"
    whole = "collect"
    functions = ("save", "interval", "collect")
    cases = (Case(1, 24, function="save"), Case(1, 24, function="interval"), Task(4, 100), Task(3, 60, b=0),
             Task(5, 100, b=2), Task(6, 150, torch.float64), Task(2, 50, b=0))  # fmt: skip
    scored = Task(5, 1_000)
    real = Task(4, 100)
    parts: ClassVar = {
        "save": {f"{name} is saved": lambda run: False for name in STATE},  # a Fault says which are
        "interval": {"as C, L and N grow": lambda run: isclose(
                         *_ratios(run).aminmax(), rel_tol=1e-3),
                     "the size": lambda run: bool((_ratios(run).log().abs() < 1).all())},
    }  # fmt: skip
    formulas = ("2 P + the order + the random state", "until its (W - b)th gradient has come, from ANY")
    steps = STEPS

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        x, c = (normal(n * case.length, case.dtype, chance) for n in (1, case.n * LAST))
        c = c.view(case.n, LAST, -1)
        if not isinstance(case, Task):
            clusters = ((10, 4), (20, 16), (40, 64), (60, 256), (90, 1024))
            asked = [(save_s, save_s * N * chance.uniform(200, 2000), N) for save_s, N in clusters]
            return [{"x": x, "c": c[0], "asked": torch.tensor(asked, dtype=torch.float64)}]
        paces = [[chance.uniform(9e-3, 11e-3) for _ in range(LAST)] for _ in c]
        paces[1] = [35e-3] * (START + 1) + [4e-3] * STEPS  # first late by steps, then in time
        workers = [{"x": x, "c": c[k], "paces": torch.tensor(paces[k])} for k in range(1, case.n)]
        return [{"x": x, "c": c}, *workers]

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if not isinstance(case, Task):
            return _die(yours.save, inputs) if case.function == "save" else _ask(yours.interval, inputs["asked"])
        if transport.rank != SERVER:
            return _work(transport, inputs)
        updater = Updater(transport.allocate(case.length, case.dtype).copy_(inputs["x"]), LR)

        def update(g: torch.Tensor) -> None:
            updater.update(g)
            for fault in _explain_steps(case, inputs["c"], updater.result()):  # here, for what follows may never end
                raise Fault("wrong", fault)

        yours.collect(transport, updater.x, update, START, case.b)
        if case != self.scored:
            return updater.result()
        saved = yours.save(Training(inputs["x"], inputs["c"][0], 0)).values()
        return updater.result() | {"saved": torch.tensor(sum(torch.as_tensor(tensor).nbytes for tensor in saved))}

    def find_faults(self, run: Run) -> Iterator[str]:
        if run.case.function == "interval":
            yield from _explain_intervals(run.inputs[0]["asked"].tolist(), run.results[0]["answers"].tolist())
        if isinstance(run.case, Task):
            yield from _explain_steps(run.case, run.inputs[SERVER]["c"], run.results[SERVER])
            yield from _explain_answers(run, run.case)

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        right = self.right_so_far(run.case.function or "collect")
        if kind == "deadlock":
            right = f"; answer every gradient, a late one at once, until all have said goodbye{right}"
        yield right

    def label(self, message: Sent, case: Case) -> str:
        return {"gradient": "g", "parameters": "x"}.get(message.tag, message.tag)

    def costs(self, run: Run) -> dict[str, float]:
        ends = [max(message.sent for message in run.of_rank(SERVER) if message.dst == k) for k in range(1, run.case.n)]
        return {"bytes of a checkpoint": int(run.results[SERVER]["saved"]), "virtual seconds": min(ends) / STEPS}


def goodput(interval_s: float, save_s: float, between_s: float) -> float:
    """Return the part of the time that trains for good, if failures come at any time, on average every `between_s`."""
    done = exp(-(interval_s + save_s) / between_s)  # the part of the intervals that come to their end
    return interval_s / between_s * done / (1 - done)


def _die(save: Callable[[Training], Any], inputs: Vectors) -> Vectors:
    """Find what a training that goes on has saved of itself. Raises Fault."""
    training, then = (Training(inputs["x"], inputs["c"], 0) for _ in range(2))
    for _ in range(LAST + 3):  # into the second epoch
        training.step()
        then.step()
    if not isinstance(saved := save(training), dict):
        raise Fault("returned", f"save returned {kind_of(saved)}; expected a dict, of attributes by name")
    training.step()  # while the file is written
    wrong = {name: text for name in STATE if (text := _explain_saved(name, saved, getattr(then, name)))}
    if wrong:
        right = [f"{name} is saved" for name in STATE if name not in wrong]
        raise Fault("wrong", f"save: {first(wrong.values())}", right)
    return {}


def _explain_saved(name: str, saved: Mapping[str, Any], was: Any) -> str:
    """Return what is wrong in one part of what was saved; "" if nothing is."""
    if name not in saved:
        return f"{name} is not saved; without it {STATE[name]}"
    if kind_of(saved[name]) != kind_of(was):
        return f"{name} is {kind_of(saved[name])}; expected {kind_of(was)}"
    if not torch.as_tensor(saved[name]).equal(torch.as_tensor(was)):
        return f"{name} is not as it was when save was called; what step() changes in place needs a .clone()"
    return ""


def _ratios(run: Run) -> torch.Tensor:
    """Return how many times as long as Young's each interval is."""
    save_s, life_s, N = run.inputs[0]["asked"].T
    return run.results[0]["answers"] / (2 * save_s * life_s / N).sqrt()


def _ask(interval: Callable[[float, float, int], Any], asked: torch.Tensor) -> Vectors:
    answers = [interval(save_s, life_s, int(N)) for save_s, life_s, N in asked.tolist()]
    if other := [answer for answer in answers if not isinstance(answer, (int, float)) or not 0 < answer < inf]:
        raise Fault("returned", f"interval returned {other[0]!r}; expected seconds, a number above 0")
    return {"answers": torch.tensor(answers, dtype=torch.float64)}


def _explain_intervals(asked: Sequence[tuple[float, float, float]], answers: Sequence[float]) -> Iterator[str]:
    """Yield the intervals that lose more time than they must."""
    for (save_s, life_s, N), answer in zip(asked, answers, strict=True):
        best = sqrt(2 * save_s * life_s / N)
        yours, least = (100 - 100 * goodput(interval, save_s, life_s / N) for interval in (answer, best))
        if yours > _ENOUGH * least:
            begin = (f"interval({save_s:.3g}, {life_s:.3g}, {N:.0f}) is {answer:.4g}: "
                     f"{yours:.1f} % of the time is lost, with the best {least:.1f} %")  # fmt: skip
            for text, wrong in INTERVALS.items():
                if all(isclose(wrong(*given), said, rel_tol=1e-3) for given, said in zip(asked, answers, strict=True)):
                    yield f"{begin}; {text}"
            yield f"{begin}; save more {'seldom' if answer < best else 'often'}"


def _work(transport: Any, inputs: Vectors) -> Vectors:
    """Be a worker; return all x that it had, and their numbers. Raises Fault."""
    x, t = inputs["x"].clone(), START
    had, numbers = [x.clone()], [START]
    while t < LAST:
        transport.sleep(float(inputs["paces"][t]))
        transport.isend(x - inputs["c"][t], SERVER, "gradient")
        with transport.recv(SERVER, "parameters") as answer:
            begin = f"rank {transport.rank} sent its gradient for step {t}, and was sent"
            check_like("answer", begin, answer.vector, x)
            if not t < answer.n <= LAST:
                raise Fault("answer", f"{begin} n = {answer.n}; expected the number of a later step, whose x it is: "
                                      "who is in time is answered when the step is made")  # fmt: skip
            x.copy_(answer.vector)
            t = answer.n
        had.append(x.clone())
        numbers.append(t)
    transport.isend(None, SERVER, "goodbye")
    return {"had": torch.stack(had), "numbers": torch.tensor(numbers)}


def _by_step(case: Task, result: Vectors) -> tuple[dict[int, torch.Tensor], ...]:
    """Return x before each step, and in the end; and the gradients of the steps."""
    return tuple(dict(enumerate(result[name].view(-1, case.length), START)) for name in ("before", "used"))


def _explain_steps(case: Task, c: torch.Tensor, result: Vectors) -> Iterator[str]:
    """Yield the steps that were not made with the mean of the first gradients for them; `c` by worker and step."""
    (xs, used), W = _by_step(case, result), case.n - 1
    wanted = W - case.b
    taken = set[tuple[int, int]]()  # worker and step
    for t, g in used.items():
        if t == LAST:
            yield f"{case}: collect made more than {STEPS} updates"
        keys = [(k, s) for k in range(1, W + 1) for s in range(START, t + 1)]
        found = coefficients(g, [xs[s] - c[k, s] for k, s in keys]) or ()
        parts = {key: a for key, a in zip(keys, found, strict=False) if a}
        if not parts or min(parts.values()) < 0.5 / case.n:
            yield f"{case}: step {t} is not made of gradients at its x: send x after the update, with its number as n"
        for k, s in parts:
            if s < t:
                why = "begin each step with none" if (k, s) in taken else "it is late, x has changed since: drop it"
                yield f"{case}: rank {k}'s gradient for step {s} is in step {t}; {why}"
        if len(parts) != wanted:
            yield f"{case}: step {t} has {len(parts)} gradients; expected the first W - b = {wanted} of {W}"
        if not are_all([*parts.values()], 1 / wanted):
            what = describe([*parts.values()], "g of rank", [k for k, _ in parts])
            yield f"{case}: step {t} is {what}; expected the mean of {wanted} gradients"
        if not is_close(xs[t + 1], xs[t] - LR * g):
            yield f"{case}: x was changed after step {t}, and not by update"
        taken |= parts.keys()


def _explain_answers(run: Run, case: Task) -> Iterator[str]:
    """Yield the faults in the answers of the server."""
    xs, used = _by_step(case, run.results[SERVER])
    if len(used) < STEPS:
        yield f"{case}: collect made {len(used)} updates; expected {STEPS}"
        return
    if any(message.span for message in run.of_rank(SERVER)):
        yield f"{case}: collect sent x itself; send a copy, x.clone(), which no update changes on its way"
    answered = []  # by gradient: whose and for which step it was, when it came, when its answer left, and its number
    for k in range(1, run.case.n):
        numbers, had = run.results[k]["numbers"].tolist(), run.results[k]["had"]
        for t, x in zip(numbers, had, strict=True):
            if not is_close(x, xs[t]):
                yield f"{case}: rank {k} was sent another x than that of step {t}, whose number it had"
        answers = [message for message in run.of_rank(SERVER) if message.dst == k]
        for s, n, gradient, answer in zip(numbers, numbers[1:], run.of_rank(k), answers, strict=False):
            answered.append((k, s, gradient.arrived or 0.0, answer.sent, n))
    for k, s, came, left, _ in answered:
        if left > max(came, min(left for *_, left, n in answered if n > s)):  # when its step was made
            yield (f"{case}: rank {k}'s gradient for step {s} came late, at {1e3 * came:.1f} ms, and was answered at "
                   f"{1e3 * left:.1f} ms: answer who is late at once")  # fmt: skip
