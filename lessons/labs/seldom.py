"""Lab 12: seldom. Ranks take steps of their own; x0 takes an outer step to where they have gone, whole or in parts."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from lessons.lab import Case, Fault, Figure, Lab, Run, Sent, Vectors, check_in_place, is_close
from lessons.labs.param_server import LR, draw_losses
from lessons.seldom import MOMENTUM, OUTER_LR, Fragment
from strategies.collectives import Rounds

OUTER, STREAM = "outer_step", "stream"
STEP_S, REACHED, LONGEST = 0.004, 1e-3, 120  # a local step; the loss to be reached, as a part of the first; in so many
_LENGTHS = ((2, 8), (3, 12), (4, 10), (5, 45), (1, 5), (4, 3))
_PLANS = {1: (3, 2, 2, 0.2), 2: (4, 2, 1, 0.2), 3: (5, 3, 3, 0.4), 4: (8, 4, 1, 0.5), 5: (3, 2, 0, 0.7)}
"""H, P, tau and alpha, by the number of ranks."""

Formula = Callable[[Any], torch.Tensor]
_RIGHT: dict[str, Formula] = {  # in this order, for vectors [n, N] of all ranks; `old` and `before`: x0 and m before it
    "d": lambda s: (s.old - s.sent).mean(1, keepdim=True),
    "m": lambda s: MOMENTUM * s.before + s.d,
    "x0": lambda s: s.old - OUTER_LR * (s.d + MOMENTUM * s.m),
    "x": lambda s: s.alpha * s.now + (1 - s.alpha) * s.x0,
}
_WRONG: Sequence[tuple[str, dict[str, Formula]]] = (  # what is said of other formulas
    ("x0 goes away from the mean of all x: the outer gradient is x0 less that mean, and the step goes against it",
     {"d": lambda s: (s.sent - s.old).mean(1, keepdim=True)}),
    ("the outer gradient is the sum of the differences; expected their mean: divide by what end returns",
     {"d": lambda s: (s.old - s.sent).sum(1, keepdim=True)}),
    ("each rank takes its own difference; expected the mean over all ranks", {"d": lambda s: s.old - s.sent}),
    ("the outer gradient is the mean of all x; expected x0 less that mean", {"d": lambda s: s.sent.mean(1, keepdim=True)}),
    ("x0 becomes the mean of all x, as in FedAvg; expected a step of SGD towards it", {"x0": lambda s: s.sent.mean(1, keepdim=True)}),
    ("x0 steps without the outer learning rate", {"x0": lambda s: s.old - s.d - MOMENTUM * s.m}),
    ("x0 steps without momentum", {"x0": lambda s: s.old - OUTER_LR * s.d}),
    ("x0 steps by plain momentum; Nesterov's looks ahead: d + MOMENTUM momentum", {"x0": lambda s: s.old - OUTER_LR * s.m}),
    ("x0 steps with the momentum as it was: first momentum <- MOMENTUM momentum + d",
     {"x0": lambda s: s.old - OUTER_LR * (s.d + MOMENTUM * s.before)}),
    ("the momentum begins at 0 in every outer step: keep it in fragment.momentum, in place", {"m": lambda s: s.d}),
    ("the momentum is a mean; expected MOMENTUM momentum + d, without a factor at d",
     {"m": lambda s: MOMENTUM * s.before + (1 - MOMENTUM) * s.d}),
    ("the outer step begins at x, which has drifted; expected x0, where all ranks are alike",
     {"x0": lambda s: s.now - OUTER_LR * (s.d + MOMENTUM * s.m)}),
    ("x takes the outer step, but x0 stays: the next difference is to be that from the new x0",
     {"x0": lambda s: s.old, "x": lambda s: s.alpha * s.now + (1 - s.alpha) * _RIGHT["x0"](s)}),
    ("all fragments share a momentum; expected one of each, fragment.momentum", {"shared": lambda s: s.old}),
    ("x0 is right, but x goes on as if nothing had come", {"x": lambda s: s.now}),
    ("alpha is the share of x0; expected that of x", {"x": lambda s: (1 - s.alpha) * s.now + s.alpha * s.x0}),
    ("x is replaced by x0, so the local steps since the fragment was sent are lost: blend", {"x": lambda s: s.x0}),
    ("x is blended with x0 as it was before the outer step", {"x": lambda s: s.alpha * s.now + (1 - s.alpha) * s.old}),
    ("x as it was sent is blended with x0; expected x as it is now, tau steps later",
     {"x": lambda s: s.alpha * s.sent + (1 - s.alpha) * s.x0}),
)  # fmt: skip


class Seldom(Lab):
    """The student writes `outer_step(sums, fragment)` and `stream(sums, fragment, t)`.

    Losses are those of lab 1, so the mean of all x tells how far a run is from the least. The case of the score runs
    until it has come near, and stays there: its bytes are those to reach that loss.
    """

    name = "seldom"
    functions = (OUTER, STREAM)
    cases = (*(Case(n, length, torch.float64 if n > 4 else torch.float32, name)
               for name in functions for n, length in _LENGTHS), Case(4, 24))  # fmt: skip
    scored = Case(4, 4_000)
    real = Case(3, 1_000)
    formulas = ("2 (N - 1) P / N a round", "2 (N - 1) P / N in H steps", "a local step in every step of stream")

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        inputs = draw_losses(case, chance)
        steps = [_count_steps(case, inputs, name) for name in self.functions]
        return [one | {"steps": torch.tensor(steps)} for one in inputs]

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        result: Vectors = {}
        for name in _asked(case):
            H, *_ = plan = _plan(case, name)
            sums, states, begun = _Sums(transport, case), [], []
            vectors = transport.allocate(4 * case.length, case.dtype).view(4, -1)
            vectors[:2] = inputs["x"]
            fragments = Fragment.cut(vectors, *plan)
            if name == OUTER:
                fragments = [replace(fragments[0], tag="x")]
            for t in range(1, 1 + int(inputs["steps"][self.functions.index(name)])):
                sums.pass_a_step(t)
                vectors[0].sub_(LR * (vectors[0] - inputs["c"]))
                for fragment in fragments if name == STREAM or t % H == 0 else ():
                    given = (sums, fragment, t)[: 2 + (name == STREAM)]
                    returned = getattr(yours, name)(*given)
                    begin = f"step {t}: rank {transport.rank}: {name}"
                    check_in_place(begin, "change x0 and x in place", returned, fragment.x, fragment.x)
                states.append(vectors[:2].clone())
                begun.append([sums.begun.count(fragment.tag) for fragment in fragments])
                sums.begun.clear()
            for fragment in fragments:  # what has no turn before the end
                sums.advance(fragment.tag)
            result |= {name: torch.stack(states), f"{name} begun": torch.tensor(begun)}
        return result

    def find_faults(self, run: Run) -> Iterator[str]:
        for name in _asked(run.case):
            yield from (f"{name}: {run.case}, {fault}" for fault in _explain(run, name))

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "hole" and run.case.function:
            yield self.right_so_far(run.case.function)

    def costs(self, run: Run) -> dict[str, float]:
        def sent(rank: int, name: str) -> int:
            return sum(one.nbytes for one in run.of_rank(rank) if (one.tag == "x") == (name == OUTER))

        ranks = range(run.case.n)
        nbytes = {f"bytes to the loss, {name}": max(sent(rank, name) for rank in ranks) for name in self.functions}
        return {**nbytes, "virtual seconds": run.seconds}

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "virtual seconds":
            yield "stream waits for a sum in the step in which it is begun: end it tau steps later"
        yield "more is summed than one difference of each fragment in its turn"


class _Sums(Rounds):
    """The sums that a student's function begins; those on their way go on while a rank computes."""

    def __init__(self, transport: Any, case: Case) -> None:
        super().__init__(transport)
        self.case, self.transport, self.t, self.begun = case, transport, 0, list[str]()

    def begin(self, vector: torch.Tensor, n: int, tag: str) -> None:
        """See Rounds. Raises Fault."""
        if tag in self:
            self._fail(f"begin({tag!r}), whose last sum was not ended")
        self.begun.append(tag)
        super().begin(vector, n, tag)

    def end(self, tag: str) -> int:
        """See Rounds. Raises Fault."""
        if tag not in self:
            self._fail(f"end({tag!r}), of which no sum was begun")
        return super().end(tag)

    def pass_a_step(self, t: int) -> None:
        """Let the time of local step t pass; in each part of it every sum comes one rank further."""
        N, self.t = self.case.n, t
        for _ in range(hops := max(1, 2 * (N - 1))):
            self.transport.sleep(STEP_S / hops)
            for tag in [*self._going]:
                self._give(tag, self._transport.recv((self._transport.rank - 1) % N, tag))

    def _fail(self, text: str) -> None:
        raise Fault("sum", f"{self.case}, step {self.t}: rank {self._transport.rank}: {text}")


def _asked(case: Case) -> Sequence[str]:
    return (case.function,) if case.function else Seldom.functions


def _plan(case: Case, name: str) -> tuple[int, int, int, float]:
    """Return H, P, tau and alpha: DiLoCo is one fragment, which is used at once and keeps nothing."""
    plan = _PLANS[case.n]
    return plan if name == STREAM else (plan[0], 1, 0, 0.0)


def _count_steps(case: Case, inputs: Sequence[Vectors], name: str) -> int:
    """Return the steps of a run: three rounds, or those after which the loss stays as low as it is to be reached."""
    H, _, tau, _ = plan = _plan(case, name)
    if case != Seldom.scored:
        return 3 * H + tau
    least = torch.stack([one["c"] for one in inputs]).mean(0)
    above = (_play(inputs, plan, LONGEST)[:, 0].mean(2) - least).square().sum(1)
    return 2 + int((above > REACHED * (inputs[0]["x"] - least).square().sum()).nonzero().max())


def _play(inputs: Sequence[Vectors], plan: tuple[int, int, int, float], steps: int, **wrong: Formula) -> torch.Tensor:
    """Return x and x0 of all ranks [steps, 2, P, N] after each step, by the right formulas but for some."""
    c, x = (torch.stack([one[name] for one in inputs], -1) for name in ("c", "x"))
    vectors = torch.stack([x, x, torch.zeros_like(x), x])  # x, x0, the momentum, x as it was sent
    fragments, states = Fragment.cut(vectors, *plan), []
    for t in range(1, steps + 1):
        vectors[0].sub_(LR * (vectors[0] - c))
        for one in fragments:
            if (t - one.offset) % one.H == 0:
                one.sum.copy_(one.x)
            if t > one.tau and (t - one.tau - one.offset) % one.H == 0:
                m = (fragments[0] if "shared" in wrong else one).momentum[: len(one.x)]
                s = SimpleNamespace(old=one.x0.clone(), now=one.x.clone(), before=m.clone(), sent=one.sum, alpha=one.alpha)
                for name, formula in (_RIGHT | wrong).items():
                    setattr(s, name, formula(s))
                for vector, new in ((m, s.m), (one.x0, s.x0), (one.x, s.x)):
                    vector.copy_(new)
        states.append(vectors[:2].clone())
    return torch.stack(states)


def _explain(run: Run, name: str) -> Iterator[str]:
    """Yield what is wrong with what a function has begun to sum, and with x0 and x."""
    plan = H, _, tau, _ = _plan(run.case, name)
    got = torch.stack([result[name] for result in run.results], -1)
    right, steps, ranks = _play(run.inputs, plan, len(got)), range(len(got)), range(run.case.n)
    fragments = Fragment.cut([torch.arange(run.case.length)] * 4, *plan)
    for i, (p, one), rank in product(steps, enumerate(fragments), ranks if name == STREAM else ()):
        if bool(run.results[rank][f"{name} begun"][i, p]) != (is_due := (i + 1 - one.offset) % H == 0):
            yield (f"step {i + 1}: rank {rank} begins {'no' if is_due else 'a'} sum of {one.tag}, whose turn is when "
                   f"(t - {one.offset}) mod {H} = 0")  # fmt: skip
    if is_close(got, right):
        return
    yield from (line for line, wrong in _WRONG if is_close(got, _play(run.inputs, plan, len(got), **wrong)))
    for i, one, which, rank in product(steps, fragments, (1, 0), ranks):
        if not is_close(got[i, which, one.x, rank], right[i, which, one.x, rank]):
            since = (i + 1 - one.offset) % H
            expected = "an outer step" if since == tau else "local steps only"
            yield (f"step {i + 1}: rank {rank} ends with a wrong {('x', 'x0')[which]} of {one.tag}, which was sent {since} "
                   f"steps ago; expected {expected}: tau is {tau}")  # fmt: skip
