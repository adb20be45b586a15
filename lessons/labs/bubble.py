"""Lab 14: the bubble. Orders of the passes of a pipeline, and a step that sends what they need."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from lessons.bubble import PASS_S, Pass, Pipe
from lessons.lab import Case, Fault, Figure, Lane, Run, Vectors
from lessons.labs.bubble_orders import ARGUMENTS, SIZES, TABLE, Find, Plan, words, wrong_passes
from lessons.points import has_none
from lessons.scripts import ScriptLab
from lessons.values import is_close, kind_of, normal

B = 2  # samples of a micro-batch


@dataclass(frozen=True)
class Task(Case):
    """A step on `n` ranks with `m` micro-batches and `v` stages of each rank; `length` numbers of a sample."""

    m: int = 1
    v: int = 1

    def __str__(self) -> str:
        return f"p = {self.n}, m = {self.m}, v = {self.v}" + (", float64" if self.dtype == torch.float64 else "")

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The orders that are run, by name, and the stages of a rank: of all three functions, or of a drawn one."""
        return [("", self.v)] if self.function else [(name, 1 + (self.v - 1) * ("v" in of)) for name, of in
                                                     ARGUMENTS.items()]  # fmt: skip


def plans_of(run: Run) -> Iterator[Plan]:
    """Yield the orders that the function of a case has returned."""
    for i, (p, m, v) in enumerate(SIZES[run.case.function] if run.results else ()):
        yield Plan(run.case.function, p, m, v, [decode(run.results[0][f"{i}.{rank}"]) for rank in range(p)])


def in_plans(find: Find) -> Callable[[Run], Iterator[str]]:
    """Return what yields the passes that are not once in the orders of a run, and these faults."""
    return lambda run: (text for plan in plans_of(run) for text in (*wrong_passes(plan), *find(plan)))


def wrong_steps(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in the passes of a step, and the kind of these passes."""
    case = run.case
    assert isinstance(case, Task)
    for name, v in case.parts:
        wanted, losses, grads = one_process(run.inputs[0], case, v * case.n)
        given: list[tuple[int, int, Pass, torch.Tensor]] = []  # by their place in the data's way
        for rank, result in enumerate(run.results):
            made, order = decode(result[f"{name}passes"]), decode(result[f"{name}order"])
            if made != order:
                place = next((i for i, pair in enumerate(zip(made, order, strict=False)) if len({*pair}) > 1), -1)
                does, should = (words(of[place]) if place >= 0 else f"{len(of)} passes" for of in (made, order))
                yield f"{case}{name and f', {name}'}: rank {rank} made {does}; its order says {should}", ""
            for pass_, value in zip(made, result[f"{name}given"], strict=True):
                stage = pass_.chunk * case.n + rank
                given.append((1 + stage if pass_.kind == "F" else 2 * v * case.n - stage, rank, pass_, value))
        for place, rank, pass_, value in sorted(given, key=lambda entry: entry[0]):
            needs = wanted[pass_.kind, pass_.micro_batch, pass_.chunk * case.n + rank]
            begin = f"{case}{name and f', {name}'}: rank {rank}, {words(pass_)}, was given"
            if place in (1, 1 + v * case.n):
                if not value.isnan().all():
                    yield f"{begin} a tensor; x is None at the first stage, the gradient at the last", pass_.kind
            elif not is_close(value, needs):
                yield f"{begin} {explain(value, wanted, case.n)}", pass_.kind
        if not is_close(torch.stack([result[f"{name}loss"] for result in run.results]).sum(0, True), losses):
            yield f"{case}: the loss is another than that of one process", "F"
        for rank, result in enumerate(run.results):
            for chunk in range(v):
                if not is_close(result[f"{name}gradients"][chunk], grads[chunk * case.n + rank]):
                    yield f"{case}: rank {rank}'s gradient of chunk {chunk} is another than that of one process", "B"


Wanted = dict[tuple[str, int, int], torch.Tensor]


def explain(given: torch.Tensor, wanted: Wanted, p: int) -> str:
    """Return what it is that a pass was given."""
    if given.isnan().all():
        return "nothing"
    if not given.any():
        return "zeros: was it used before it had come?"
    cure = "give each message its own tag, and change no tensor that is still being sent"
    alike = (f"what is for the {words(Pass(kind, i, stage // p))} of rank {stage % p}: {cure}"
             for (kind, i, stage), value in wanted.items() if is_close(given, value))  # fmt: skip
    return next(alike, "something else")


def one_process(inputs: Vectors, case: Task, stages: int) -> tuple[Wanted, torch.Tensor, torch.Tensor]:
    """Return what each pass is to be given by its kind, micro-batch and stage; the loss; the stages' gradients."""
    d = case.length
    weights = inputs["weights"].view(-1, d, d)[:stages].clone().requires_grad_()
    x, targets = (inputs[name].view(case.m, B, d) for name in ("inputs", "targets"))
    ys = [x]
    for weight in weights:
        ys.append(torch.tanh(ys[-1] @ weight))
    loss = (ys[-1] - targets).square().mean() * torch.ones(1, dtype=case.dtype)
    of_weights, *of_ys = torch.autograd.grad(loss, [weights, *ys[1:]])
    pairs = [(i, stage) for i in range(case.m) for stage in range(stages)]
    forward: Wanted = {("F", i, stage): ys[stage][i].detach() for i, stage in pairs}
    return forward | {("B", i, stage): of_ys[stage][i] for i, stage in pairs}, loss.detach(), of_weights


def decode(passes: torch.Tensor) -> list[Pass]:
    """Return the passes that numbers stand for."""
    return [Pass("?FB"[kind], i, chunk) for kind, i, chunk in passes.tolist()]


def encode(order: Any, call: str) -> torch.Tensor:
    """Return passes as numbers [passes, 3]. Raises Fault."""
    if not isinstance(order, list):
        what = "a tuple" if isinstance(order, tuple) else kind_of(order)
        raise Fault("returned", f"{call} returned {what}; expected a list of Pass")
    for pass_ in order:
        if not isinstance(pass_, Pass):
            raise Fault("returned", f"{call} returned a list with {kind_of(pass_)} in it; expected a list of Pass")
        numbers_fit = all(isinstance(number, int) and abs(number) < 1e9 for number in pass_[1:])
        if pass_.kind not in ("F", "B") or not numbers_fit:
            raise Fault("returned", f"{call} returned {pass_}; expected 'F' or 'B', and two whole numbers")
    return torch.tensor([(1 + "FB".find(kind), *which) for kind, *which in order], dtype=torch.int64).view(-1, 3)


def draw_orders(case: Task, chance: random.Random) -> list[list[Pass]]:
    """Return some orders in which all ranks come to their end if no send waits."""
    orders, stages = [list[Pass]() for _ in range(case.n)], case.n * case.v
    ready = [("F", i, 0) for i in range(case.m)]
    while ready:
        kind, i, stage = ready.pop(chance.randrange(len(ready)))
        orders[stage % case.n].append(Pass(kind, i, stage // case.n))
        if kind == "F":
            ready.append(("F", i, stage + 1) if stage + 1 < stages else ("B", i, stage))
        elif stage:
            ready.append(("B", i, stage - 1))
    return orders


class Bubble(ScriptLab):
    """The student writes three orders, and `step(order, pipe)`, which is first run on orders that are drawn."""

    name = "bubble"
    functions = (*ARGUMENTS, "step")
    whole = "step"
    changed = ()
    cases = (*(Case(1, 1, function=name) for name in ARGUMENTS), Task(2, 3, function="step", m=2),
             Task(3, 4, function="step", m=4), Task(2, 3, function="step", m=4, v=2), Task(1, 3, function="step", m=2),
             Task(4, 5, torch.float64, function="step", m=6, v=2))  # fmt: skip
    scored = Task(4, 6, m=8, v=2)
    real = Task(3, 8, m=6, v=2)
    formulas = ("(m + p - 1) c", "(m + p - 1) c", "(m v + p - 1) c / v", "m", "p", "p + (p - 1) / v",
                "(4 + 2 v) m")  # fmt: skip
    parts: ClassVar = {
        name: {part: has_none(in_plans(find)) for part, find in rows.items()} for name, rows in TABLE.items()
    } | {
        "step": {"the activations": lambda run: all(kind == "B" for _, kind in wrong_steps(run)),
                 "the gradients": lambda run: all(kind == "F" for _, kind in wrong_steps(run))},
    }  # fmt: skip

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        if not isinstance(case, Task):
            return [{}]
        numbers = {"inputs": case.m * B, "targets": case.m * B, "weights": case.n * case.v * case.length}
        drawn = {name: normal(n * case.length, case.dtype, chance) for name, n in numbers.items()}
        return [drawn | {"order": encode(order, "")} for order in draw_orders(case, chance)]

    def run_rank(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        if isinstance(case, Task):
            results = (self._run_step(yours, case, inputs, name, v) for name, v in case.parts)
            return {key: value for result in results for key, value in result.items()}
        write, names = getattr(yours, case.function), ARGUMENTS[case.function]
        result = {}
        for i, sizes in enumerate(SIZES[case.function]):
            for rank in range(sizes[0]):
                given = rank, *sizes[: len(names)]
                result[f"{i}.{rank}"] = encode(write(*given), f"{case.function}{given}")
        return result

    def _run_step(self, yours: SimpleNamespace, case: Task, inputs: Vectors, name: str, v: int) -> Vectors:
        """Run a step in the order that a function gives, or in that of the inputs; return what became of it."""
        rank, d = dist.get_rank(), case.length
        order = decode(inputs["order"])
        if name:
            order = getattr(yours, name)(*(rank, case.n, case.m, v)[: 1 + len(ARGUMENTS[name])])
        weights = inputs["weights"].view(-1, d, d)[rank : v * case.n : case.n]
        x, targets = (inputs[of].view(case.m, B, d) for of in ("inputs", "targets"))
        pipe = Pipe(rank, case.n, [*weights], x, targets, 0.0 if case == self.real else PASS_S)
        dist.barrier()
        begun = time.perf_counter()
        returned = yours.step(order, pipe)
        if returned is not None:
            raise Fault("returned", f"{case}: rank {rank}: step returned {kind_of(returned)}; expected nothing")
        given = [torch.full_like(x[0], torch.nan) if given is None else given for *_, given in pipe.passes]
        of_weights = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in pipe.weights]
        result = {
            "passes": encode([pass_ for pass_, *_ in pipe.passes], "step"), "order": encode(order, name),
            "given": torch.stack([*given, x[0]])[:-1], "loss": pipe.loss, "gradients": torch.stack(of_weights),
            "spans": torch.tensor([span for _, *span, _ in pipe.passes], dtype=torch.float64).view(-1, 2),
            "times": torch.tensor([begun, time.perf_counter()], dtype=torch.float64),
            "kept": torch.tensor(pipe.most_kept / v),
        }  # fmt: skip
        return {f"{name}{key}": value for key, value in result.items()}

    def lanes(self, run: Run) -> list[Lane]:
        if not isinstance(run.case, Task):
            return []
        begin, found = min(float(result[f"{run.case.parts[0][0]}times"][0]) for result in run.results), list[Lane]()
        for rank, result in enumerate(run.results):
            for name, _ in run.case.parts:
                made, spans = decode(result[f"{name}passes"]), (result[f"{name}spans"] - begin).tolist()
                for pass_, (start, stop) in zip(made, spans, strict=True):
                    kind = words(pass_).partition(" ")[0]
                    found.append(Lane(rank, start, stop, str(pass_.micro_batch), f"{kind}, chunk {pass_.chunk}"))
        return found

    def find_faults(self, run: Run) -> Iterator[str]:
        if isinstance(run.case, Task):
            yield from (text for text, _ in wrong_steps(run))
            return
        for find in TABLE[run.case.function].values():
            yield from (f"{plan} {text}" for plan in plans_of(run) for text in find(plan))

    def costs(self, run: Run) -> dict[str, float]:
        assert isinstance(run.case, Task)
        seconds, kept = {}, {}
        for name, _ in run.case.parts:
            begins, ends = zip(*(result[f"{name}times"].tolist() for result in run.results), strict=True)
            seconds[f"seconds, {name}"] = max(ends) - min(begins)
            kept[f"activations kept, {name}"] = max(float(result[f"{name}kept"]) for result in run.results)
        sent = [sum(message.nbytes for message in run.of_rank(rank) if message.tag.startswith("message"))
                for rank in range(run.case.n)]  # fmt: skip
        return seconds | kept | {"activations sent by a rank": max(sent) / (B * run.case.length * 4)}

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if "seconds" in missed[0].name:
            yield "a rank waits although its next pass could begin: for a send, or for what only a later pass needs"
