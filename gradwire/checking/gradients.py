"""The gradient that a step takes, as a weighted sum of those of the ranks: is it the mean over all samples?

Least squares on sketches gives the weight of each rank. The gradient that reaches the output of the loss tells what
the loss was divided by. Silent: where the gradient is no weighted sum (compressed, adapted), where the script has no
loss of torch's or several of them, and about scales that are neither the number of ranks nor its inverse.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from gradwire.checking.findings import Finding
from gradwire.checking.replicas import shared
from gradwire.checking.seen import MEAN, STRATEGY, Criterion, Parameter, Run, Step, common
from gradwire.checking.sketch import equal, weights

KIND = "gradient is not the mean"
_NEAR = 0.02


def judge(run: Run) -> list[Finding]:
    """Return what most steps have in common that is wrong."""
    found: Counter[str] = Counter()
    firsts: dict[str, Finding] = {}
    steps = 0
    for group in run.groups():
        each = dict(common(group))
        if any(step.repeats for step in group) or not each:
            continue
        steps += 1
        for finding in _judge_step(group, each):
            found[finding.cure] += 1
            firsts.setdefault(finding.cure, finding)
    often = [cure for cure, count in found.most_common() if 2 * count >= steps]
    return [firsts[cure] for cure in often][:1]


def _judge_step(group: list[Step], each: dict[str, list[Parameter]]) -> list[Finding]:
    step = group[0]
    if any(p.is_stale and p.taken is not None for of_ranks in each.values() for p in of_ranks):
        name = next(name for name, of_ranks in each.items() if any(p.is_stale for p in of_ranks))
        what = f"step {step.number} takes gradients once more that a step before has taken"
        return [Finding(KIND, what, "call zero_grad() before each backward pass", step.at, step=step.number,
                        parameter=name.partition(":")[2])]  # fmt: skip
    used = [of_ranks for of_ranks in each.values() if shared(of_ranks) and all(p.own is not None for p in of_ranks)]
    same = [of_ranks for of_ranks in each.values() if _is_same(of_ranks)]
    if not used and not same:
        return []
    chosen = used or same
    owns = [np.concatenate([p.own for p in column if p.own is not None]) for column in zip(*chosen, strict=True)]
    found = weights(owns, np.concatenate([of_ranks[0].taken for of_ranks in chosen if of_ranks[0].taken is not None]))
    losses = [_loss_of(member) for member in group]
    known = [loss for loss in losses if loss is not None]
    if found is None or len(known) < len(losses) or (not used and not all(step.shares for step in group)):
        return []
    n = len(group)
    total = sum(weight * loss.weight for weight, loss in zip(found, known, strict=True))
    passes = max(len(p.passes) for p in each[next(iter(each))])
    by_hand, by = group[0].at, "the strategy" if STRATEGY in step.how else "DDP"
    is_mean = all(loss.is_mean for loss in known)
    if is_mean and abs(total / n - 1) < _NEAR:
        what = f"step {step.number} takes the sum of the gradients of {n} ranks, {n} times the mean"
        if abs(sum(found) - 1) < _NEAR:
            what = f"step {step.number} takes {n} times the mean: the loss or its gradients are multiplied by {n}"
        if passes == n and abs(sum(found) - 1) < _NEAR:
            return [_accumulated(step, passes)]
        return [Finding(KIND, what, "divide by the number of ranks, once", by_hand, step=step.number)]
    if abs(total * n - 1) < _NEAR:
        what = f"step {step.number} takes 1/{n} of the mean: something is divided by the number of ranks twice"
        return [Finding(KIND, what, f"divide by the number of ranks once: {by} does it", by_hand, step=step.number)]
    if not is_mean:
        return []  # a sum may be meant
    if passes > 1 and abs(total / passes - 1) < _NEAR:
        return [_accumulated(step, passes)]
    if not used or (STRATEGY in step.how and MEAN not in step.how):
        return []
    each_sample = [weight * loss.weight / max(loss.n, 1) for weight, loss in zip(found, known, strict=True)]
    counts, numbers = [loss.n for loss in known], [member.rank for member in group]
    if max(each_sample) < (1 + _NEAR) * min(each_sample) or min(each_sample) < 1e-3 * max(each_sample):
        return []  # where some ranks are left out, that is meant
    if len(set(counts)) > 1:
        if max(found) > (1 + _NEAR) * min(found) or any(loss.weight != known[0].weight for loss in known):
            return []
        shares = ", ".join(f"rank {rank} {count}" for rank, count in zip(numbers, counts, strict=True))
        what = f"in step {step.number} ranks have means over unlike numbers of targets ({shares}), weighted alike"
        cure = "weight each rank by its number, then divide by the sum of all"
        cure = "give step() the number" if STRATEGY in step.how else cure
        return [Finding(KIND, what, cure, by_hand, step=step.number)]
    if any(abs(loss.weight - known[0].weight) > _NEAR * abs(known[0].weight) for loss in known):
        return []
    less = [w * float(np.linalg.norm(own)) for w, own in zip(found, owns, strict=True) if w < (1 - _NEAR) * max(found)]
    if max(less) > 1.5 * min(less):  # norms that are estimated by sketches; clipped ones are equal
        return []
    told = ", ".join(f"rank {rank} {n * weight:.3g}" for rank, weight in zip(numbers, found, strict=True))
    what = f"step {step.number} takes the ranks' gradients by unlike weights ({told}), as if each had been clipped"
    cure = "give WorkerOptimizer clip_norm" if STRATEGY in step.how else "clip after the gradients are all-reduced"
    return [Finding(KIND, what, cure, by_hand, step=step.number)]


def _accumulated(step: Step, passes: int) -> Finding:
    what = f"step {step.number} takes the sum of {passes} backward passes, {passes} times the mean"
    return Finding(KIND, what, f"divide each loss by {passes}, if the mean is meant", step.at, True, step.number)


def _is_same(of_ranks: list[Parameter]) -> bool:
    """Return whether all ranks have one own gradient, and one that they take."""
    own, taken = [p.own for p in of_ranks if p.own is not None], [p.taken for p in of_ranks if p.taken is not None]
    return len(own) == len(taken) == len(of_ranks) and equal(*own) and equal(*taken) and bool(np.any(own[0]))


def _loss_of(step: Step) -> Criterion | None:
    """Return the losses of a step as one; None: they cannot be known."""
    passes = {task for p in step.parameters.values() for task in p.passes}
    found = [step.criteria.get(task, []) for task in passes]
    if not found or any(len(criteria) != 1 for criteria in found):
        return None
    losses = [criteria[0] for criteria in found]
    if len({loss.is_mean for loss in losses}) > 1:
        return None
    if len({step.lines.get(task) for task in passes}) > 1 and len({loss.at for loss in losses}) > 1:
        return None  # losses of several kinds
    return replace(losses[0], weight=losses[0].weight * _passes(losses), n=sum(loss.n for loss in losses))


def _passes(losses: list[Criterion]) -> float:
    return sum(loss.weight for loss in losses) / losses[0].weight if losses[0].weight else 0.0
