"""The verdicts on the server of lab 4, update by update; of its other functions see `late_words`.

A server is judged by what the ranks have ended with, since on real processes nothing else is seen: the x before each
update, the gradients that were used, and every x that a worker had. In virtual time its messages tell also whether it
took what came first, and answered as soon as it could.
"""

from collections.abc import Sequence

import torch

from lessons.lab import Run, Sent, counted, is_close
from lessons.sums import coefficients, describe

LR = 0.1
_SOON = 1e-9  # seconds: what happens at once


class Served:
    """What a server has done, and what it had to do with, as the ranks have ended with it."""

    def __init__(self, run: Run) -> None:
        P, server, workers = run.case.length, run.results[0], range(1, run.case.n)
        self.run = run
        self.before = server["before"].reshape(-1, P)  # [updates + 1, P]: x before each update, and at the end
        self.used = server["used"].reshape(-1, P)  # [updates, P]
        self.staleness = [int(late) if late.is_integer() else late for late in server["staleness"].tolist()]
        self.had = {k: run.results[k]["had"].reshape(-1, P) for k in workers}  # [steps + 1, P]
        self.c = {k: run.inputs[k]["c"] for k in workers}
        self.steps = {k: len(xs) - 1 for k, xs in self.had.items()}  # how many each worker has taken

    def version_of(self, x: torch.Tensor) -> int | None:
        """Return which version of x this is; None if it is none."""
        return next((v for v, one in enumerate(self.before) if is_close(x, one)), None)


def explain_serve(run: Run, s: int | None) -> str:
    """Return what is wrong first in what a server has done; "" if nothing is."""
    seen = Served(run)
    begin = f"{seen.run.case}:"
    order: list[tuple[int, int]] = []  # worker and step of the gradients, as they were applied
    due = dict.fromkeys(seen.had, 0)
    for i, g in enumerate(seen.used):
        if i and not is_close(seen.before[i], seen.before[i - 1] - LR * seen.used[i - 1]):
            old = seen.version_of(seen.before[i])
            text = f"on version {old}, though there had been {counted(i, 'update')}; x is changed by `update` only"
            return f"{begin} update {i + 1} was made {text}"
        found = [k for k, j in due.items() if j < seen.steps[k] and is_close(g, seen.had[k][j] - seen.c[k])]
        if not found:
            return f"{begin} {_explain_used(seen, i, due)}"
        order.append((found[0], due[found[0]]))
        due[found[0]] += 1
    total = sum(seen.steps.values())
    if len(order) != total:
        return f"{begin} the server made {len(order)} updates with {total} gradients; expected one with each"
    return _explain_order(seen, order) or _explain_answers(seen, order, s) or _explain_staleness(seen, order)


def _explain_used(seen: Served, i: int, due: dict[int, int]) -> str:
    """Return what update i was made with, if it was no worker's gradient."""
    parts = {k: seen.had[k][j] - seen.c[k] for k, j in due.items() if j < seen.steps[k]}
    found = coefficients(seen.used[i], list(parts.values())) if parts else None
    text = "what is no worker's next gradient" if found is None else describe(found, [f"g of rank {k}" for k in parts])
    return (f"update {i + 1} was made with {text}: who waits for several gradients waits for the slowest; expected one "
            "update with each gradient, as it came")  # fmt: skip


def _explain_order(seen: Served, order: Sequence[tuple[int, int]]) -> str:
    """Return which gradient was taken before one that had come earlier; "" if none was, or nothing is known of it."""
    if not seen.run.sent:
        return ""
    sent = {k: [one.sent for one in seen.run.of_rank(k) if one.tag == "gradient"] for k in seen.had}
    times = [sent[k][j] for k, j in order]
    for i, time in enumerate(times):
        earlier = min(range(i, len(times)), key=lambda later: times[later])
        if times[earlier] < time - _SOON:
            waited = 1000 * (time - times[earlier])
            return (f"{seen.run.case}: the server took the gradient of rank {order[i][0]} first, though that of rank "
                    f"{order[earlier][0]} had come {waited:.1f} virtual ms before; receive from ANY")  # fmt: skip
    return ""


def _explain_answers(seen: Served, order: Sequence[tuple[int, int]], s: int | None) -> str:
    """Return which worker got which x too early or too late; "" if none did."""
    begin, mine = f"{seen.run.case}:", {step: i for i, step in enumerate(order)}
    versions: list[int] = []  # that the answers have
    for i, (k, j) in enumerate(order):
        got = seen.version_of(seen.had[k][j + 1])
        if got is None:
            return f"{begin} what rank {k} got after update {i + 1} is no version of x"
        if got <= i:
            return (f"{begin} rank {k} got version {got}, which does not have its own gradient in it, which made "
                    f"version {i + 1}; send x after the update")  # fmt: skip
        versions.append(got)
    if text := explain_waits(seen.run, s) or _explain_old(seen, order, versions):
        return f"{begin} {text}"
    for i, (k, j) in enumerate(order):
        counts = {m: sum(mine[m, n] < versions[i] for n in range(steps)) for m, steps in seen.steps.items()}
        ahead = {m: j + 1 - count for m, count in counts.items() if count < seen.steps[m]}
        if s is not None and ahead and max(ahead.values()) > s:
            slowest = max(ahead, key=lambda m: ahead[m])
            return (f"{begin} rank {k} was answered when it was {counted(ahead[slowest], 'step')} ahead of rank "
                    f"{slowest}; the bound is {s}")  # fmt: skip
        if s is None and (late := versions[i] - i - 1):
            return f"{begin} rank {k} had to wait for {counted(late, 'update')} of others: answer at once"
    return ""


def _explain_old(seen: Served, order: Sequence[tuple[int, int]], versions: Sequence[int]) -> str:
    """Return who was sent an x that had been updated since, going by messages; "" if nobody was."""
    came = [_arrival(one) for one in seen.run.sent if one.tag == "gradient"]
    answers = {k: [one.sent for one in seen.run.sent if one.rank == 0 and one.dst == k] for k in seen.had}
    for i, (k, j) in enumerate(order if came else ()):
        at = answers[k][j]
        made = sum(time < at - _SOON for time in came)
        # Of several gradients taken at the time of the answer, nobody knows which were applied before it.
        made += sum(abs(time - at) <= _SOON for time in came) == 1
        if versions[i] < made:
            got = f"version {versions[i]}, the x of when it was held back"
            return f"rank {k} was answered after update {made}, but with {got}; send the x of now"
    return ""


def explain_waits(run: Run, s: int | None) -> str:
    """Return who was answered without having asked, or later than the bound allows, going by messages; "" if nobody."""
    came = sorted((one for one in run.sent if one.dst == 0 and one.arrived is not None), key=_arrival)
    answers = {k: [one.sent for one in run.sent if one.rank == 0 and one.dst == k] for k in range(1, run.case.n)}
    taken, present = dict.fromkeys(answers, 0), set(answers)  # gradients of each; who has not said goodbye
    waiting: set[int] = set()
    for message in came:
        own, at = message.rank, _arrival(message)
        for k, sent in answers.items():
            if sum(time < at - _SOON for time in sent) > taken[k]:
                return f"rank {k} was sent x though it waited for none: answer only who has sent a gradient"
        if message.tag == "gradient":
            taken[own] += 1
            waiting.add(own)
        else:
            present.discard(own)
        slowest = min((taken[k] for k in present), default=0)
        for k in sorted(waiting & present):
            ahead = taken[k] - slowest
            if s is not None and ahead > s:
                continue
            waiting.remove(k)
            if len(answers[k]) >= taken[k] and answers[k][taken[k] - 1] <= at + _SOON:
                continue
            if s is None:
                return f"rank {k} has no answer to its gradient {taken[k]}; expected one at once"
            of = "the slowest" if len(present) == len(answers) else "the slowest that is still at work"
            allowed = f"it is {counted(ahead, 'step')} ahead of {of}, and s = {s} allows that"
            if k == own:
                return f"rank {k} is held back, though {allowed}"
            if message.tag != "gradient":
                return f"rank {k} is held back, though {allowed} since rank {own} has said goodbye and left"
            moved = f"rank {own} has moved on: after every message look at all who wait"
            return f"rank {k} is held back, though {allowed} since {moved}"
    for k, sent in answers.items():
        if len(sent) > taken[k]:
            return f"rank {k} was sent {len(sent)} x for {taken[k]} gradients: answer only who has sent one"
    return ""


def _arrival(message: Sent) -> float:
    assert message.arrived is not None
    return message.arrived


def _explain_staleness(seen: Served, order: Sequence[tuple[int, int]]) -> str:
    """Return which staleness was returned instead of which."""
    versions = [seen.version_of(seen.had[k][j]) or 0 for k, j in order]
    expected = [i - read for i, read in enumerate(versions)]
    found, begin = seen.staleness, f"{seen.run.case}:"
    if found == expected:
        return ""
    if len(found) != len(expected):
        return f"{begin} serve returned {len(found)} numbers for {len(expected)} gradients; expected one for each"
    if found == [late + 1 for late in expected]:
        return f"{begin} every staleness is 1 too large: what counts is the version that a gradient is applied to"
    if found == versions:
        return f"{begin} serve returned the versions that were read; staleness is the version applied to, less that"
    done = dict.fromkeys(seen.had, 0)
    behind = []
    for k, _ in order:
        done[k] += 1
        behind.append(max(done.values()) - done[k])
    if found == behind:
        return (f"{begin} serve returned how many of its own steps a worker is behind the furthest; staleness counts "
                "versions of x, that is updates, of all workers")  # fmt: skip
    i = next(i for i, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
    return (f"{begin} the gradient of rank {order[i][0]} that was applied to version {i} was computed on version "
            f"{versions[i]}: staleness {expected[i]}; serve returned {found[i]:g}")  # fmt: skip
