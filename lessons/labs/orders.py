"""Lab 11: every order. A server that drops late gradients, and is wrong in some orders of its messages.

In virtual time no gradient is late: only the search in all orders finds mistakes in the versions.
"""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import torch

from gradwire.every_order.explore import explore
from gradwire.every_order.invariants import Holds
from gradwire.every_order.report import Report
from lessons.lab import Case, Fault, Run, Vectors, first
from lessons.labs.not_waiting import LR, SERVER, NotWaiting, Task
from lessons.values import Updater, is_close, kind_of

SENT, APPLIED, DROPPED = _WORDS = ("sent", "applied", "dropped")
Happened: TypeAlias = Sequence[tuple[str, int]]  # one of these words, and the worker
_NO_BOUND = 30  # versions


def decisions(happened: Happened, latest: bool = False) -> Iterator[tuple[str, int, int, int]]:
    """Yield for each gradient its fate, its worker, the version it was computed on, and the version at that time.

    With `latest`, as the wrong server has it: all are computed on the version that was sent last.
    """
    version, read = 0, dict[int, int]()
    for what, k in happened:
        if what == SENT:
            read[k] = version
        else:
            yield what, k, max(read.values()) if latest else read[k], version
            version += what == APPLIED


def explain(happened: Happened, s: int) -> Iterator[str]:
    """Yield the wrong decisions of a server."""
    for what, k, read, version in decisions(happened):
        if (what == APPLIED) != (version - read <= s):
            yield (f"the gradient of rank {k}, computed on version {read}, was {what} at version {version}: "
                   f"{version - read} late, and the bound is {s}")  # fmt: skip


def _next(happened: Happened, k: int) -> tuple[str, ...]:
    """Return what may happen next with worker k."""
    return (APPLIED, DROPPED) if [what for what, of in happened if of == k][-1:] == [SENT] else (SENT,)


def _all_that_can_happen(longest: int = 8, begin: Happened = ()) -> Iterator[Happened]:
    yield [*begin]
    for k in (1, 2) if len(begin) < longest else ():
        for what in _next(begin, k):
            yield from _all_that_can_happen(longest, (*begin, (what, k)))


_ASKED = sorted(((happened, s) for happened in _all_that_can_happen() for s in (0, 1)), key=lambda asked: len(asked[0]))
_HINTS: dict[str, Callable[[Happened, int], bool]] = {  # of what an invariant may be instead
    "it is True of whatever happens, so it finds nothing": lambda happened, s: True,
    "a server that drops everything would pass: say also what it may not drop":
        lambda happened, s: all(what == DROPPED or now - read <= s for what, _, read, now in decisions(happened)),
    "it makes the mistake of the server: keep for each worker which version that one was sent":
        lambda happened, s: all((w == APPLIED) == (now - r <= s) for w, _, r, now in decisions(happened, latest=True)),
}  # fmt: skip


def noting(happened: list[tuple[str, int]]) -> Callable[[str, int], None]:
    """Return the function by which a server notes what happens. It raises Fault."""

    def note(what: str, k: int) -> None:
        if what not in (expected := _next(happened, k)):
            words = " or ".join(map(repr, expected))
            raise Fault("note", f"note({what!r}, {k}): of rank {k} comes {words} next, after {happened[-3:]}")
        happened.append((what, k))

    return note


def ask(holds: Callable[[Happened, int], bool]) -> Holds:
    """Return a student's invariant as one for `explore`."""

    def your_holds(run: Any) -> str | None:
        happened, s = run.ranks[SERVER].strategy.happened, run.case.strategy.s
        return None if holds([*happened], s) else first(explain(happened, s))

    return your_holds


class Orders(NotWaiting):
    """The student writes `holds(happened, s)`, and mends `serve(transport, x, update, note, s)`."""

    name = "orders"
    whole = "serve"
    functions = ("holds", "serve")
    cases = (Case(1, 1, function="holds"), Task(3, 8, s=_NO_BOUND), Task(2, 6, s=0),
             Task(5, 12, torch.float64, s=_NO_BOUND))  # fmt: skip
    scored = Task(4, 100, s=_NO_BOUND)
    real = Task(4, 50, s=1)
    parts: ClassVar = {"holds": {
        "what is applied": lambda run: _are_held(run, lambda what, late, s: what == APPLIED or late > s),
        "what is dropped": lambda run: _are_held(run, lambda what, late, s: what == DROPPED or late <= s),
        "one worker": lambda run: _are_held(run, lambda what, late, s: True, workers=1),
    }}  # fmt: skip
    formulas = ("1 for each fetch", "P for each fetch", "its steps (its computing + 2 latency + P / bandwidth)")

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        if not isinstance(case, Task):
            held = [yours.holds([*happened], s) for happened, s in _ASKED]
            if other := [value for value in held if value not in (True, False)]:
                raise Fault("returned", f"holds returned {kind_of(other[0])}; expected True or False")
            return {"held": torch.tensor([bool(value) for value in held])}
        if transport.rank != SERVER:
            return _work(transport, inputs)
        happened = list[tuple[str, int]]()
        updater = Updater(transport.allocate(case.length, case.dtype).copy_(inputs["x"]), LR)
        yours.serve(transport, updater.x, updater.update, noting(happened), case.s)
        return {"x": updater.x, "happened": torch.tensor([[_WORDS.index(what), k] for what, k in happened])}

    def in_all_orders(self, load: Callable[[], SimpleNamespace]) -> Report:
        from lessons import orders  # which imports `decisions` from here

        class Mine(orders.Mine):
            def setup(self) -> None:
                super().setup()
                self.serve_all = load().serve

            def stalest(self, workers: int) -> None:
                """Leave that to `holds`."""

        holds = ask(load().holds)
        for s, n_gpus, steps, at_most in ((0, 3, 2, 252), (0, 4, 1, 84), (1, 3, 2, 252)):  # of the second, only a part
            found = explore(Mine(s=s), n_gpus, steps, own_steps=True, invariant=holds, at_most=at_most, random=0,
                            until_broken=True)  # fmt: skip
            if found.counterexample:
                break
        return found

    def find_faults(self, run: Run) -> Iterator[str]:
        if isinstance(run.case, Task):
            yield from (f"{run.case}: {text}" for text in _explain_server(run, run.case.s or 0))
        else:
            yield from _explain_holds(run.results[0]["held"].tolist())

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        yield self.right_so_far(run.case.function or "serve")


def _work(transport: Any, inputs: Vectors) -> Vectors:
    """Be a worker. Return all x that it had, in order."""
    x, had = inputs["x"].clone(), []
    for _ in range(int(inputs["steps"])):
        transport.isend(None, SERVER, "fetch")
        transport.recv(SERVER, "parameters").copy_to(x)
        had.append(x.clone())
        transport.sleep(float(inputs["pace"]))
        transport.isend(x - inputs["c"], SERVER, "gradient")
    transport.isend(None, SERVER, "goodbye")
    return {"had": torch.stack(had)}


def _are_held(run: Run, counts: Callable[[str, int, int], bool], workers: int = 2) -> bool:
    """Whether `holds` is right wherever all gradients, by fate, lateness and bound, are of those that count."""
    asked = zip(_ASKED, run.results[0]["held"].tolist(), strict=True)
    return all(is_held == (not first(explain(happened, s))) for (happened, s), is_held in asked
               if len({k for _, k in happened}) <= workers
               and all(counts(what, now - read, s) for what, _, read, now in decisions(happened)))  # fmt: skip


def _explain_holds(held: Sequence[bool]) -> Iterator[str]:
    for (happened, s), is_held in zip(_ASKED, held, strict=True):
        wrong = first(explain(happened, s))
        if is_held == bool(wrong):
            why = wrong or f"nothing in it is wrong: what is more than {s} late is dropped, and nothing else"
            hints = (text for text, other in _HINTS.items() if held == [other(*asked) for asked in _ASKED])
            yield "; ".join([f"holds({happened}, {s}) is {is_held}, though {why}", *hints])


def _explain_server(run: Run, s: int) -> Iterator[str]:
    x, read, server = run.inputs[SERVER]["x"], dict[int, torch.Tensor](), run.results[SERVER]
    happened = [(_WORDS[i], k) for i, k in server["happened"].tolist()]
    had = {k: iter(run.results[k]["had"]) for k in range(1, run.case.n)}
    for what, k in happened:
        if what == SENT:
            read[k] = x
            if not is_close(next(had.get(k, iter(())), None), x):
                yield f"rank {k} was sent something else than x with one update for each gradient noted as applied"
        elif what == APPLIED:
            x = x - LR * (read[k] - run.inputs[k]["c"])
    if not is_close(server["x"], x):
        yield "x has not had one update for each gradient noted as applied in the end"
    yield from explain(happened, s)
