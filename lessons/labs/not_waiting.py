"""Lab 4: not waiting. A server applies each gradient when it comes; and how large a rate late gradients can bear."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from gradwire.every_order.explore import explore
from gradwire.every_order.report import Report
from lessons import not_waiting
from lessons.lab import Case, Fault, Lab, Run, Sent, Vectors
from lessons.labs import not_waiting_words as words
from lessons.labs.not_waiting_words import LR, Served, explain_answers, explain_descend, explain_rates, explain_serve
from lessons.points import has_none
from lessons.values import Updater, is_close, normal

SERVER = 0
PACES = (5e-3, 9e-3, 16e-3, 28e-3)  # seconds that workers compute for a gradient, before chance has stretched them
_STEPS_OF = (12, 7, 4, 4)  # the steps of these workers: the faster, the more
_STEPS = 40  # of `descend`


@dataclass(frozen=True)
class Task(Case):
    """One run of `serve` on `n` ranks with the bound s.

    `alike`: all workers have about the same pace, so that gradients come close upon each other.
    """

    s: int | None = None
    alike: bool = False

    def __str__(self) -> str:
        return super().__str__() + ("" if self.s is None else f", s = {self.s}")


class NotWaiting(Lab):
    """The student writes an asynchronous server; the workers are the lab's, each with a pace of its own.

    Worker k has a loss of its own, |x - c_k|^2 / 2, whose gradient is x - c_k, so a gradient tells whose it is, and
    which x it was computed on.
    """

    name = "not_waiting"
    functions: ClassVar[tuple[str, ...]] = ("serve", "descend", "largest_rate")
    whole = "serve"
    cases: ClassVar[tuple[Case, ...]] = (
        Task(3, 8), Task(4, 12), Task(2, 6), Task(4, 12, torch.float64), Task(4, 100_000, alike=True), Task(3, 8, s=1),
        Task(4, 12, s=0), Task(5, 10, s=2), Case(1, 1, torch.float64, function="descend"),
        Case(1, 1, torch.float64, function="largest_rate"),
    )  # fmt: skip
    scored = Task(4, 100)
    real = Task(4, 50, s=1)
    parts: ClassVar = {
        "serve": {"the updates": has_none(lambda run: words.explain_updates(Served(run))),
                  "the answers": has_none(lambda run: explain_answers(run, _bound_of(run.case), Served(run)))},
        "descend": {"without staleness": lambda run: _descends(run, most=0),
                    "the first step": lambda run: _descends(run, steps=2)},
        "largest_rate": {"without staleness": lambda run: _bears(run, most=0),
                         "nearly": lambda run: _bears(run, tolerance=words.NEAR)},
    }  # fmt: skip
    formulas = ("1 for each gradient", "P for each gradient", "its steps (its computing + 2 latency + 2 P / bandwidth)")

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        if not isinstance(case, Task):
            taus = [2, 0, 1, chance.randint(3, 5), chance.randint(6, 9)]
            curvatures = [chance.choice([0.5, 2.0]) * chance.uniform(0.7, 1.3) for _ in taus]
            rates = [chance.uniform(0.1, 0.3) for _ in taus]
            return [{"taus": torch.tensor(taus), "curvatures": torch.tensor(curvatures), "rates": torch.tensor(rates)}]
        x = normal(case.length, case.dtype, chance)
        paces = PACES[:1] * (case.n - 1) if case.alike else PACES
        workers = [*zip(paces, [3] * (case.n - 1) if case.alike else _STEPS_OF, strict=False)][: case.n - 1]
        chance.shuffle(workers)
        return [{"x": x}] + [
            {"x": x, "c": normal(case.length, case.dtype, chance), "steps": torch.tensor([steps]),
             "pace": torch.tensor([pace * chance.uniform(0.9, 1.1)], dtype=torch.float64)}
            for pace, steps in workers
        ]  # fmt: skip

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if isinstance(case, Task):
            if transport.rank != SERVER:
                return _work(transport, inputs)
            updater = Updater(transport.allocate(case.length, case.dtype).copy_(inputs["x"]), LR)
            staleness = _numbers(yours.serve(transport, updater.x, updater.update, case.s), "serve")
            return updater.result() | {"staleness": staleness}
        asked = _asked(inputs)
        if case.function == "descend":
            return {f"x{i}": _numbers(_call(yours.descend, "descend", rate, curvature, tau, _STEPS), "descend")
                    for i, (rate, curvature, tau) in enumerate(asked)}  # fmt: skip
        rates = [_call(yours.largest_rate, "largest_rate", curvature, tau) for _, curvature, tau in asked]
        return {"rates": _numbers(rates, "largest_rate")}

    def in_all_orders(self, load: Callable[[], SimpleNamespace]) -> Report:
        class Mine(not_waiting.Mine):
            def setup(self) -> None:
                super().setup()
                self.serve_all = load().serve

        found = explore(Mine(), n_gpus=3, steps=3, own_steps=True, until_broken=True)
        return found if found.counterexample else explore(Mine(s=1), 3, 3, own_steps=True, until_broken=True)

    def find_faults(self, run: Run) -> Iterator[str]:
        if isinstance(run.case, Task):
            yield from (f"{run.case}: {text}" for text in explain_serve(run, run.case.s))
            return
        asked, result = _asked(run.inputs[0]), run.results[0]
        if run.case.function == "descend":
            for i, arguments in enumerate(asked):
                yield from explain_descend(*arguments, _STEPS, result[f"x{i}"].tolist())
        else:
            yield from explain_rates([(curvature, tau) for _, curvature, tau in asked], result["rates"].tolist())

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        function = run.case.function or "serve"
        s = _bound_of(run.case)
        # The cases with a bound come behind those without.
        right = self.right_so_far(function) if s is None else "; right so far: serve without a bound"
        if kind == "damage":
            yield f"; or send a copy, x.clone(), so that nobody waits{right}"
        if kind == "loop" and function == "largest_rate":
            yield f"; largest_rate may take a second, so try fewer rates, or fewer steps of descend with each{right}"
        if kind in ("deadlock", "unread"):
            yield from (f"; {text}{right}" for text in explain_answers(run, s))
        if kind == "deadlock" and function == "serve":
            yield from (f"; {text}{right}" for text in _explain_end(run))
        yield right

    def explain_unread(self, run: Run, message: Sent) -> Iterator[str]:
        begin = f"{run.case}: rank 0 never received {message.tag!r} {message.step} of rank {message.rank}"
        if message.dst == SERVER:
            yield from (f"{begin}: {end}" for end in _explain_end(run))

    def place(self, message: Sent, case: Case) -> str:
        return f"{'answer' if message.rank == SERVER else 'step'} {message.step}"

    def label(self, message: Sent, case: Case) -> str:
        return message.tag if message.vector is None and message.rank != SERVER else super().label(message, case)

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        if vector.numel() != case.length:
            return f"{vector.numel()} elements"
        return "x" if message.rank == SERVER else "g"

    def costs(self, run: Run) -> dict[str, float]:
        fastest = min(range(1, run.case.n), key=lambda rank: float(run.inputs[rank]["pace"]))
        done = max(message.arrived or 0.0 for message in run.sent if message.dst == fastest)
        return {"messages of the server": run.messages[SERVER], "bytes of the server": run.nbytes[SERVER],
                "seconds of the fastest worker": done}  # fmt: skip


def _bound_of(case: Case) -> int | None:
    return case.s if isinstance(case, Task) else None


def _asked(inputs: Vectors) -> list[tuple[float, float, int]]:
    """Return the rates, curvatures and stalenesses that `descend` and `largest_rate` are called with."""
    return [*zip(*(inputs[name].tolist() for name in ("rates", "curvatures", "taus")), strict=True)]


def _descends(run: Run, most: int = 9, steps: int | None = None) -> bool:
    """Whether the first x of `descend` are right, or all, with staleness up to `most`."""
    asked = [(i, arguments) for i, arguments in enumerate(_asked(run.inputs[0])) if arguments[2] <= most]
    right = {i: torch.tensor(words.descend(*arguments, _STEPS), dtype=torch.float64) for i, arguments in asked}
    return all(is_close(run.results[0][f"x{i}"][:steps], x[:steps]) for i, x in right.items())


def _bears(run: Run, most: int = 9, tolerance: float = words.TOLERANCE) -> bool:
    """Whether `largest_rate` is right with staleness up to `most`."""
    pairs = zip(_asked(run.inputs[0]), run.results[0]["rates"].tolist(), strict=True)
    return all(abs(rate / words.largest(curvature, tau) - 1) <= tolerance
               for (_, curvature, tau), rate in pairs if tau <= most)  # fmt: skip


def _explain_end(run: Run) -> Iterator[str]:
    left = {message.rank for message in run.sent if message.tag == "goodbye" and message.arrived is not None}
    if there := ", ".join(str(k) for k in range(1, run.case.n) if k not in left):
        yield f"serve is to go on until all workers have said goodbye; not yet: rank {there}"


def _call(function: Callable[..., Any], name: str, *asked: float) -> Any:
    """Call a function and return its result. Exceptions get a note with the call, which the report shows."""
    try:
        return function(*asked)
    except Exception as error:
        error.add_note(f"{name}({', '.join(f'{value:.3g}' for value in asked)})")
        raise


def _work(transport: Any, inputs: Vectors) -> Vectors:
    """Be a worker: compute for a while, send the gradient, wait for x. Return all x that it had, in order."""
    x = inputs["x"].clone()
    had = [x.clone()]
    for _ in range(int(inputs["steps"])):
        transport.sleep(float(inputs["pace"]))
        transport.isend(x - inputs["c"], SERVER, "gradient")
        transport.recv(SERVER, "parameters").copy_to(x)
        had.append(x.clone())
    transport.sleep(float(inputs["pace"]))  # as if it looked at what it has learned
    transport.isend(None, SERVER, "goodbye")
    return {"had": torch.cat(had)}


def _numbers(returned: Any, name: str) -> torch.Tensor:
    """Return what a function has returned as a vector. Raises Fault."""
    try:
        return torch.tensor([float(value) for value in returned], dtype=torch.float64)
    except (TypeError, ValueError):
        kind = "nothing" if returned is None else f"a {type(returned).__name__}"
        if isinstance(returned, list):
            kind = f"{returned[0]!r}"[:60] if name == "largest_rate" else "a list with something else than numbers"
        what = {"serve": "a list, the staleness of each gradient", "descend": "a list of numbers x_0 ... x_steps"}
        raise Fault("returned", f"{name} returned {kind}; expected {what.get(name, 'a number')}") from None
