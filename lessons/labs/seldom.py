"""Lab 12: seldom. Ranks take steps of their own; x0 takes an outer step to where they have gone, whole or in parts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.lab import Case, Fault, Figure, Run, Vectors, counted
from lessons.labs.param_server import LR, OfLosses
from lessons.seldom import MOMENTUM, OUTER_LR, Fragment
from lessons.values import is_close
from strategies.collectives import Rounds

OUTER, STREAM = "outer_step", "stream"
STEP_S = 0.004  # a local step
STEPS = {OUTER: 80, STREAM: 47}  # of the score: from the last one on the loss is below 1/1000 of the first
_LENGTHS = ((2, 8), (3, 12), (4, 10), (5, 45), (1, 5), (4, 3))
# By the number of ranks: H, P, tau and alpha.
_PLANS = {1: (3, 2, 2, 0.2), 2: (4, 2, 1, 0.2), 3: (5, 3, 3, 0.4), 4: (8, 4, 1, 0.5), 5: (3, 2, 0, 0.7)}

Formula = Callable[[Any], torch.Tensor]
_RIGHT: dict[str, Formula] = {  # of [n, N], all ranks, in this order; `old`, `last` and `now`: x0, m and x before it
    "own": lambda s: s.old - s.sent,
    "d": lambda s: s.own.mean(1, True),
    "m": lambda s: MOMENTUM * s.last + s.d,
    "new": lambda s: s.old - OUTER_LR * (s.d + MOMENTUM * s.m),
    "x": lambda s: s.alpha * s.now + (1 - s.alpha) * s.new,
    "x0": lambda s: s.new,
}
_WRONG: Sequence[tuple[str, str, Formula]] = (
    ("x0 goes away from the mean of all x: the outer gradient is x0 less that mean, and the step goes against it",
     "own", lambda s: s.sent - s.old),
    ("the outer gradient is the sum of all differences; expected their mean: divide by what end returns",
     "d", lambda s: s.own.sum(1, True)),
    ("each rank takes its own difference; expected the mean over all ranks", "d", lambda s: s.own),
    ("the outer gradient is the mean of all x; expected x0 less that mean", "own", lambda s: s.sent),
    ("fragment.sum is changed between begin and end", "d", lambda s: (s.old - s.now) / s.old.shape[1]),
    ("the momentum begins at 0 in every outer step: change fragment.momentum, in place", "m", lambda s: s.d),
    ("the momentum takes 1 - MOMENTUM of d, as in Adam; expected MOMENTUM m + d",
     "m", lambda s: MOMENTUM * s.last + (1 - MOMENTUM) * s.d),
    ("x0 becomes the mean of all x, as in FedAvg; expected a step of SGD from x0", "new", lambda s: s.old - s.d),
    ("x0 steps without the outer learning rate", "new", lambda s: s.old - s.d - MOMENTUM * s.m),
    ("x0 steps without momentum", "new", lambda s: s.old - OUTER_LR * s.d),
    ("x0 steps by plain momentum; Nesterov's step is d + MOMENTUM momentum, with the new momentum",
     "new", lambda s: s.old - OUTER_LR * s.m),
    ("the outer step begins at x, which has drifted; expected x0, where all ranks are alike",
     "new", lambda s: s.now - OUTER_LR * (s.d + MOMENTUM * s.m)),
    ("x takes the outer step, but x0 stays: the next difference is that from the new x0", "x0", lambda s: s.old),
    ("x0 is right, but x goes on as if nothing had come", "x", lambda s: s.now),
    ("alpha is the share of x0; expected that of x", "x", lambda s: (1 - s.alpha) * s.now + s.alpha * s.new),
    ("x is replaced by x0, so the local steps since it was sent are lost: blend them", "x", lambda s: s.new),
    ("x is blended with x0 as it was before the outer step", "x", lambda s: s.alpha * s.now + (1 - s.alpha) * s.old),
    ("x as it was sent is blended with x0; expected x as it is now, tau steps later",
     "x", lambda s: s.alpha * s.sent + (1 - s.alpha) * s.new),
)  # fmt: skip


class Seldom(OfLosses):
    """The student writes `outer_step(sums, fragment)` and `stream(sums, fragment, t)`.

    Losses are those of lab 1: of one curvature, so that the same number of steps leads any of them to the loss of the
    score.
    """

    name = "seldom"
    functions = (OUTER, STREAM)
    cases = (*(Case(n, length, torch.float64 if n > 4 else torch.float32, name)
               for name in functions for n, length in _LENGTHS), Case(4, 24))  # fmt: skip
    scored = Case(4, 4_000)
    real = Case(3, 1_000)
    parts: ClassVar = {name: {
        "the outer gradient": lambda run: _slip(run) in ("m", "new", "x0", "x"),
        "the momentum": lambda run: _slip(run) in ("own", "d", "new", "x0", "x"),
        "the step of x0": lambda run: _slip(run) in ("own", "d", "m", "x"),
        "x": lambda run: _slip(run) in ("own", "d", "m", "new", "x0"),
    } for name in (OUTER, STREAM)}  # fmt: skip
    formulas = ("2 (N - 1) P / N a round", "2 (N - 1) P / N in H steps", "in stream only the local steps")

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        result: Vectors = {}
        for name in [case.function] if case.function else self.functions:
            vectors = transport.allocate(4 * case.length, case.dtype).view(4, -1)
            vectors[:2] = inputs["x"]
            fragments, states = _cut(vectors, case, name), []
            sums = _Sums(transport, fragments)
            steps = STEPS[name] if case == self.scored else 4 * fragments[0].H
            for t in range(1, steps + 1):
                sums.pass_a_step(t)
                vectors[0].sub_(LR * (vectors[0] - inputs["c"]))
                for fragment in fragments:
                    if name == STREAM:
                        yours.stream(sums, fragment, t)
                    elif t % fragment.H == 0:
                        yours.outer_step(sums, fragment)
                states.append(vectors[:2].clone())
            for fragment in fragments:  # what has no turn before the end
                sums.advance(fragment.tag)
            result[name] = torch.stack(states)
        return result

    def find_faults(self, run: Run) -> Iterator[str]:
        for name in run.results[0]:
            yield from (f"{name}: N = {run.case.n}, {fault}" for fault in _explain(run, name))

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "hole" and run.case.function:
            yield self.right_so_far(run.case.function)

    def costs(self, run: Run) -> dict[str, float]:
        sent = [sum(message.nbytes for message in run.of_rank(0) if (message.tag == "model") == (name == OUTER))
                for name in self.functions]  # fmt: skip
        return {"bytes to the loss, outer_step": sent[0], "bytes to the loss, stream": sent[1],
                "virtual seconds": run.seconds}  # fmt: skip

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == "virtual seconds":
            yield "a sum is waited for in the step in which it is begun: end it tau steps later"
        yield "more is summed than one difference of a fragment in its turn"


class _Sums(Rounds):
    """The sums that a student's function begins; those on their way go on while a rank computes."""

    def __init__(self, transport: Any, fragments: Sequence[Fragment]) -> None:
        super().__init__(transport)
        self.transport, self.fragments, self.t = transport, {fragment.tag: fragment for fragment in fragments}, 0

    def begin(self, vector: torch.Tensor, n: int, tag: str) -> None:
        """See Rounds. Raises Fault."""
        fragment = self.fragments[tag]
        if tag in self or (self.t - fragment.offset) % fragment.H:
            self._fail("begin", fragment, "its last sum was never ended, and so not used" if tag in self else "not now")
        if vector is fragment.x and fragment.tau:
            self._fail("begin", fragment, "x takes local steps while it is summed: sum a copy, in fragment.sum")
        super().begin(vector, n, tag)

    def end(self, tag: str) -> int:
        """See Rounds. Raises Fault."""
        if tag not in self:
            self._fail("end", self.fragments[tag], "nothing of it is on its way")
        return super().end(tag)

    def pass_a_step(self, t: int) -> None:
        """Let the time of local step t pass; in each part of it every sum comes one rank further."""
        N, self.t = self.transport.world_size, t
        for _ in range(hops := max(1, 2 * (N - 1))):
            self.transport.sleep(STEP_S / hops)
            for tag in [*self._going]:
                self._give(tag, self.transport.recv((self.transport.rank - 1) % N, tag))

    def _fail(self, call: str, fragment: Fragment, why: str) -> None:
        begin = f"N = {self.transport.world_size}, step {self.t}: rank {self.transport.rank}: {call}({fragment.tag!r})"
        raise Fault("sum", f"{begin}: {why}; it is sent when t > 0 and (t - {fragment.offset}) mod {fragment.H} = 0, "
                           f"and used tau = {fragment.tau} steps later")  # fmt: skip


def _cut(vectors: Iterable[torch.Tensor], case: Case, name: str) -> list[Fragment]:
    """Return the fragments of x, x0, the momentum and the sum: for DiLoCo one, whose sum is used at once."""
    H, P, tau, alpha = _PLANS[case.n] if name == STREAM else (_PLANS[case.n][0], 1, 0, 0.0)
    parts = zip(*(vector.tensor_split(P) for vector in vectors), strict=True)
    tag = "fragment {}" if name == STREAM else "model"
    return [Fragment(tag.format(p), p * H // P, H, tau, alpha, *part) for p, part in enumerate(parts)]


def _play(case: Case, inputs: Sequence[Vectors], name: str, steps: int, **wrong: Formula) -> torch.Tensor:
    """Return x and x0 of all ranks [steps, 2, P, N] after each step, by the right formulas but for one."""
    c, x = (torch.stack([inputs_of_rank[key] for inputs_of_rank in inputs], -1) for key in ("c", "x"))
    vectors = torch.stack([x, x, torch.zeros_like(x), x])  # x, x0, the momentum, x as it was sent
    fragments, states = _cut(vectors, case, name), []
    for t in range(1, steps + 1):
        vectors[0].sub_(LR * (vectors[0] - c))
        for fragment in fragments:
            if (t - fragment.offset) % fragment.H == 0:
                fragment.sum.copy_(fragment.x)
            if t > fragment.tau and (t - fragment.tau - fragment.offset) % fragment.H == 0:
                s = SimpleNamespace(
                    old=fragment.x0.clone(), now=fragment.x.clone(), last=fragment.momentum.clone(), sent=fragment.sum
                )
                s.alpha = fragment.alpha
                for key, formula in (_RIGHT | wrong).items():
                    setattr(s, key, formula(s))
                for vector, value in ((fragment.momentum, s.m), (fragment.x0, s.x0), (fragment.x, s.x)):
                    vector.copy_(value)
        states.append(vectors[:2].clone())
    return torch.stack(states)


def _like(run: Run, name: str, got: torch.Tensor) -> Iterator[tuple[str, str]]:
    """Yield the wrong formulas that explain results of a run: their texts, and the keys in `_RIGHT` they replace."""
    for line, key, formula in _WRONG:
        if is_close(got, _play(run.case, run.inputs, name, len(got), **{key: formula})):
            yield line, key


def _slip(run: Run) -> str:
    """Return which formula of `_RIGHT` is the only one that is wrong; "" if none alone explains the run."""
    if not run.results or not run.case.function:
        return ""
    got = torch.stack([result[run.case.function] for result in run.results], -1)
    return next((key for _, key in _like(run, run.case.function, got)), "")


def _explain(run: Run, name: str) -> Iterator[str]:
    """Yield the faults in x and x0."""
    got = torch.stack([result[name] for result in run.results], -1)
    right = _play(run.case, run.inputs, name, len(got))
    if is_close(got, right):
        return
    yield from (line for line, _ in _like(run, name, got))
    fragments = _cut([torch.arange(run.case.length)] * 4, run.case, name)
    for i, fragment, which, rank in product(range(len(got)), fragments, (1, 0), range(run.case.n)):
        yours, expected = (states[i, which, fragment.x, rank] for states in (got, right))
        if not is_close(yours, expected):
            since = (i + 1 - fragment.offset) % fragment.H
            when = "now" if since == fragment.tau else f"after tau = {fragment.tau} steps"
            yield (
                f"step {i + 1}: rank {rank} ends with {('x', 'x0')[which]}[0] = {yours[0]:.4g} in {fragment.tag}, "
                f"whose turn was {counted(since, 'step')} ago; expected {expected[0]:.4g}, an outer step {when}"
            )
