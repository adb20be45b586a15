"""The verdicts on the functions of lab 4: on the server message by message, on the descent, and on the largest rate.

A server is judged by the results of the ranks: the x before each update, the gradients that were used, and every
x that a worker had. In virtual time its messages also show whether it took the first to come, and when it
answered each worker.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from lessons.lab import Run, Sent, counted
from lessons.sums import coefficients, describe
from lessons.values import is_close

LR = 0.1
TOLERANCE = 0.02  # of the largest rate
NEAR = 0.1  # of it: from here on x needs many steps to be small
_ROUNDING = 1e-9  # what it may change of a number
_SOON = 1e-9  # seconds: what happens at once


class Served:
    """What a server has done, and what it had to do with, as the ranks have ended with it."""

    def __init__(self, run: Run) -> None:
        P, server, workers = run.case.length, run.results[0], range(1, run.case.n)
        self.before = server["before"].reshape(-1, P)  # [updates + 1, P]: x before each update, and at the end
        self.used = server["used"].reshape(-1, P)  # [updates, P]
        self.staleness = [int(late) if late.is_integer() else late for late in server["staleness"].tolist()]
        self.had = {k: run.results[k]["had"].reshape(-1, P) for k in workers}  # [steps + 1, P]
        self.c = {k: run.inputs[k]["c"] for k in workers}
        self.steps = {k: len(xs) - 1 for k, xs in self.had.items()}  # how many each worker has taken
        self.made: dict[tuple[int, int], int] = {}  # which version the gradient of each worker and step has made

    def version_of(self, x: torch.Tensor | None) -> int | None:
        """Return which version of x this is; None if it is none."""
        return next((v for v, version in enumerate(self.before) if is_close(x, version)), None)


def explain_serve(run: Run, s: int | None) -> Iterator[str]:
    """Yield the faults of a server."""
    seen = Served(run)
    yield from explain_updates(seen)
    yield from _explain_order(run)
    yield from _explain_had(seen)
    yield from explain_answers(run, s, seen)
    yield from _explain_staleness(seen)


def explain_updates(seen: Served) -> Iterator[str]:
    """Yield the updates that were not made with one gradient each, and note those that were."""
    due = dict.fromkeys(seen.had, 0)
    for i, g in enumerate(seen.used):
        if i and not is_close(seen.before[i], seen.before[i - 1] - LR * seen.used[i - 1]):
            yield (f"update {i + 1} was made on version {seen.version_of(seen.before[i])}, though there had been "
                   f"{counted(i, 'update')}; x is changed by `update` only")  # fmt: skip
        parts = {k: seen.had[k][j] - seen.c[k] for k, j in due.items() if j < seen.steps[k]}
        found = [k for k, part in parts.items() if is_close(g, part)]
        if not found:
            made_of = coefficients(g, list(parts.values())) if parts else None
            text = describe(made_of, "g of rank", parts) if made_of else "what is no worker's next gradient"
            yield (f"update {i + 1} was made with {text}: who waits for several gradients waits for the slowest; "
                   "expected one update with each gradient, as it came")  # fmt: skip
        seen.made[found[0], due[found[0]]] = i + 1
        due[found[0]] += 1
    if len(seen.made) != (total := sum(seen.steps.values())):
        yield f"the server made {len(seen.made)} updates with {total} gradients; expected one with each"


def _of_server(run: Run) -> list[Sent]:
    """Return the messages that the server has taken and sent, in the order in which it has done so."""
    of_server = [message for message in run.sent if message.rank == 0 or (message.dst == 0 and message.taken)]
    return sorted(of_server, key=lambda message: message.taken if message.rank else message.number)


def _explain_order(run: Run) -> Iterator[str]:
    came = [message for message in _of_server(run) if message.tag == "gradient"]
    for i, message in enumerate(came):
        first = min(came[i:], key=lambda later: later.sent)
        if first.sent < message.sent - _SOON:
            yield (f"the server took the gradient of rank {message.rank} first, though that of rank {first.rank} had "
                   f"come {1000 * (message.sent - first.sent):.1f} virtual ms before; receive from ANY")  # fmt: skip


def _explain_had(seen: Served) -> Iterator[str]:
    """Yield the workers that were sent a vector that is no x, or an x without their own gradient."""
    for (k, j), made in seen.made.items():
        got = seen.version_of(seen.had[k][j + 1])
        if got is None:
            yield f"what rank {k} got after update {made} is no version of x"
        elif got < made:
            yield (f"rank {k} got version {got}, which does not have its own gradient in it, which made version {made}"
                   "; send x after the update")  # fmt: skip


def explain_answers(run: Run, s: int | None, seen: Served | None = None) -> Iterator[str]:
    """Yield wrong answers, by messages: unasked, too early, too late, with an old x.

    `seen` is None if the run has not come to its end.
    """
    steps = dict.fromkeys(range(1, run.case.n), 0)  # gradients taken of each worker that is still at work
    made, waiting = 0, set[int]()
    last: Sent | None = None  # that was taken
    early = []  # yielded last: a worker may be ahead because another is held back
    for message in _of_server(run):
        if message.rank == 0:
            k = message.dst
            if k not in waiting:
                yield f"rank {k} was sent x though it waited for none: answer only who has sent a gradient"
            waiting.remove(k)
            slowest = min(steps, key=steps.__getitem__)
            if s is not None and (ahead := steps[k] - steps[slowest]) > s:
                at = f"when it was {counted(ahead, 'step')} ahead of rank {slowest}"
                early.append(f"rank {k} was answered {at}; the bound is {s}")
            got = seen.version_of(message.vector) if seen else None
            if got is not None and got < made:
                yield (f"rank {k} was answered after update {made}, but with version {got}, the x of when it was held "
                       "back; send the x of now")  # fmt: skip
            continue
        if last and (message.arrived or 0) > (last.arrived or 0) + _SOON:
            yield from _explain_wait(run, steps, waiting, last, s)
        last = message
        if message.tag == "gradient":
            made += 1
            steps[message.rank] += 1
            waiting.add(message.rank)
        else:
            del steps[message.rank]
    if last:
        yield from _explain_wait(run, steps, waiting, last, s)
    yield from early


def _explain_wait(run: Run, steps: dict[int, int], waiting: set[int], last: Sent, s: int | None) -> Iterator[str]:
    """Yield the worker that waits longer than the bound demands, after the message that was taken last."""
    for k in sorted(waiting):
        ahead = steps[k] - min(steps.values())
        if s is None:
            yield f"rank {k} has no answer to its gradient {steps[k]}; expected one at once"
        elif ahead <= s:
            of = "the slowest" + " that is still at work" * (len(steps) < run.case.n - 1)
            far = f"{counted(ahead, 'step')} ahead of {of}"
            text = f"rank {k} is held back, though it is {far}, and s = {s} allows that"
            if last.tag != "gradient":
                yield f"{text} since rank {last.rank} has said goodbye and left"
            elif k != last.rank:
                yield f"{text} since rank {last.rank} has moved on: after every message look at all who wait"
            yield text


def _explain_staleness(seen: Served) -> Iterator[str]:
    order, found = list(seen.made), seen.staleness
    versions = [seen.version_of(seen.had[k][j]) or 0 for k, j in order]
    expected = [i - read for i, read in enumerate(versions)]
    if found == expected:
        return
    if len(found) != len(expected):
        yield f"serve returned {len(found)} numbers for {len(expected)} gradients; expected one for each"
    if found == [late + 1 for late in expected]:
        yield "every staleness is 1 too large: what counts is the version that a gradient is applied to"
    if found == versions:
        yield "serve returned the versions that were read; staleness is the version applied to, less that"
    done = dict.fromkeys(seen.had, 0)
    behind = []
    for k, _ in order:
        done[k] += 1
        behind.append(max(done.values()) - done[k])
    if found == behind:
        yield ("serve returned how many of its own steps a worker is behind the furthest; staleness counts "
               "versions of x, that is updates, of all workers")  # fmt: skip
    for i, (late, said) in enumerate(zip(expected, found, strict=True)):
        if late != said:
            yield (f"the gradient of rank {order[i][0]} that was applied to version {i} was computed on version "
                   f"{versions[i]}: staleness {late}; serve returned {said:g}")  # fmt: skip


# The functions that run alone


def descend(rate: float, curvature: float, tau: int, steps: int) -> list[float]:
    """Return x_0 to x_steps by the matrix that makes (x_t+1, ..., x_t+1-tau) of (x_t, ..., x_t-tau)."""
    matrix, state, found = np.eye(tau + 1, k=-1), np.ones(tau + 1), [1.0]
    matrix[0, 0] = 1
    matrix[0, tau] -= rate * curvature
    with np.errstate(all="ignore"):  # what swings ever further
        for _ in range(steps):
            state = matrix @ state
            found.append(float(state[0]))
    return found


def explain_descend(rate: float, curvature: float, tau: int, steps: int, found: Sequence[float]) -> Iterator[str]:
    """Yield the wrong steps of a descent by late gradients."""
    begin, x = f"descend({rate:.3f}, {curvature:.3f}, {tau}, {steps})", descend(rate, curvature, tau, steps)
    if len(found) != steps + 1:
        yield f"{begin} returned {len(found)} numbers; expected {steps + 1}, x_0 to x_{steps}"
    if not _is_same(found[0], 1):
        yield f"{begin}: x_0 is {found[0]:.4g}; expected 1"
    for t in range(1, steps + 1):
        if _is_same(found[t], x[t]):
            continue
        due = max(t - 1 - tau, 0)
        why = f"{tau} before x_{t - 1}" if t > tau else "since before x_0 there was x_0"
        expected = f"expected that at x_{due}, {why}"
        if _is_same(found[t], x[t - 1]):
            yield f"{begin}: x_{t} was made with no gradient; {expected}"
        for u in range(t):
            if _is_same(found[t], x[t - 1] - rate * curvature * x[u]):
                yield f"{begin}: x_{t} was made with the gradient at x_{u}; {expected}"
        text = f"{begin}: x_{t} is {found[t]:.12g}, expected {x[t]:.12g}"
        if _is_same(found[t], x[t - 1] - rate * x[due]):
            yield f"{text}: the step was rate * x_{due}; the gradient is curvature * x_{due}"
        yield f"{text}, which is x_{t - 1} - rate * (gradient at x_{due})"


def _is_same(a: float, b: float) -> bool:
    return abs(a - b) <= _ROUNDING * max(1.0, abs(b))


def largest(curvature: float, tau: int) -> float:
    """Return the largest rate: on the border a root of z^(tau + 1) = z^tau - rate curvature has |z| = 1."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1))) / curvature


def explain_rates(asked: Sequence[tuple[float, int]], rates: Sequence[float]) -> Iterator[str]:
    """Yield the wrong ones of the largest rates for pairs of a curvature and a staleness."""
    of_all = [largest(*pair) for pair in asked]
    for (curvature, tau), rate, best in zip(asked, rates, of_all, strict=True):
        if _is_near(rate, best):
            continue
        begin = f"largest_rate({curvature:.3f}, {tau}) returned {rate:.4g}:"
        if all(_is_near(rate, 2 / c) for rate, (c, _) in zip(rates, asked, strict=True)):
            yield f"{begin} that is the largest without staleness; with gradients {tau} late x swings ever further"
        if all(_is_near(rate, of * c) for rate, of, (c, _) in zip(rates, of_all, asked, strict=True)):
            yield f"{begin} the curvature is not in it: twice as curved, half the rate"
        if rate > best:
            far = (t for t, x in enumerate(descend(rate, curvature, tau, 200_000)) if abs(x) > 1e6)
            swing = next((f"to a million after {t} steps" for t in far), "though slowly")
            yield f"{begin} too large: with it x swings ever further, {swing}"
        near = ", though so near the border it takes many steps to be small" if rate >= (1 - NEAR) * best else ""
        yield f"{begin} too small: with {1.01 * max((1 - NEAR) * best, rate):.4g} x still goes to 0{near}"


def _is_near(rate: float, expected: float) -> bool:
    return abs(rate - expected) <= TOLERANCE * expected
