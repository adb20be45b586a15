"""Replicas that part: parameters that agreed, or should, and no longer do.

A parameter has agreed if it was equal on all ranks before a step in which gradients are shared, or when DDP was made.
Silent: about parameters that differ from the start and whose gradients are not shared (experts, shards), about ranks
that meet again later (local SGD), and, without DDP, about models in whose forward pass ranks talk.
"""

from collections.abc import Callable, Sequence

import numpy as np

from gradwire.checking.findings import Finding
from gradwire.checking.seen import MEAN, SERVER, STRATEGY, Parameter, Run, Step, common, ranks, shown
from gradwire.checking.sketch import Sketch, equal, multiple

KIND = "replicas part"


def judge(run: Run) -> list[Finding]:
    """Return what parts first."""
    if not (found := _changed_since_ddp(run) or _overwritten_by_ddp(run)):
        before: dict[str, list[Step]] = {}
        seldom: set[str] = set()  # those that have met again after they parted
        for group in run.groups():
            if found := _changed_beside_server(group):
                break
            if STRATEGY in group[0].how and MEAN not in group[0].how:
                continue  # its replicas need not agree after each step
            found = _parted(run, group, before.get(group[0].key[0]), seldom)
            if found:
                break
            before[group[0].key[0]] = group
    return found[:1]


def shared(each: Sequence[Parameter]) -> bool:
    """Return whether all ranks take one gradient that is not the own one of each."""
    taken, own = [p.taken for p in each if p.taken is not None], [p.own for p in each if p.own is not None]
    return len(taken) == len(each) and equal(*taken) and bool(own) and (len(own) < len(each) or not equal(*own))


def agree(each: Sequence[Parameter], when: Callable[[Parameter], Sketch]) -> bool:
    """Return whether what this takes from the parameter of each rank is equal."""
    return equal(*(when(p) for p in each))


def _parted(run: Run, group: list[Step], before: list[Step] | None, seldom: set[str]) -> list[Finding]:
    parameters = dict(common(group))
    is_any_shared = any(shared(each) or any(p.sent_at for p in each) for each in parameters.values())
    for name, each in parameters.items():
        is_ddp, may_differ = name in run.ddp, run.parallel and name not in run.ddp
        agreed = agree(each, lambda p: p.before)
        if agreed and before is not None and (found := _summed(group, before, name, each)):
            return found
        if not agreed:
            found = _differs_before(run, group, before, name, each)
            if found and not may_differ and not meets_later(run, group, name):
                return found
            continue
        if agree(each, lambda p: p.after) or (may_differ and not _have_one_gradient(each)) or name in seldom:
            continue
        if run.in_teams and _agree_in_teams(run, group, each):
            continue
        if meets_later(run, group, name):
            seldom.add(name)
            continue
        cause = _cause(run, group, each, name)
        evidence = is_any_shared or is_ddp or cause.is_sure
        if not evidence or (is_ddp and not is_any_shared and not cause.is_sure and not run.is_whole):
            continue
        values = values_of(group, each, after=True)
        what = f"{shown(name)} differs between ranks since step {group[0].number}{values}: {cause.what}"
        at = cause.at or next((step.at for step in group if step.rank == cause.rank), group[0].at)
        return [Finding(KIND, what, cause.cure, at, step=group[0].number, rank=max(cause.rank, group[0].rank),
                        parameter=shown(name))]  # fmt: skip
    return []


def _agree_in_teams(run: Run, group: list[Step], each: list[Parameter]) -> bool:
    """Return whether ranks that share gradients have the same parameter after a step."""
    after = {step.rank: p.after for step, p in zip(group, each, strict=True)}
    return all(equal(*(after[rank] for rank in team if rank in after)) for team in set(run.teams.values()))


class _Cause:
    """Why a parameter parts in a step. `is_sure`: only a mistake looks like it."""

    def __init__(self, what: str, cure: str, at: str = "", rank: int = 0, is_sure: bool = False) -> None:
        self.what, self.cure, self.at, self.rank, self.is_sure = what, cure, at, rank, is_sure


def _cause(run: Run, group: list[Step], each: list[Parameter], name: str) -> _Cause:
    if any(step.repeats for step in group):
        return _Cause("its step goes by the loss of each rank", "all-reduce the loss and gradients in the closure",
                      is_sure=any(p.sent_at for p in each))  # fmt: skip
    without = [step.rank for step, p in zip(group, each, strict=True) if p.taken is None]
    if without and len(without) < len(each):
        frozen = f"{ranks(without)} steps it without a gradient"
        return _Cause(frozen, "give it a gradient on all ranks, or freeze it on all", rank=without[0], is_sure=True)
    taken = [p.taken for p in each if p.taken is not None]
    if not taken:
        return _Cause("it has no gradient, and yet a step changes it", "give all optimizers the same settings")
    if equal(*taken):
        names = sorted({key for step in group for a, b in zip(step.settings, group[0].settings, strict=False)
                        for key in a if repr(a[key]) != repr(b.get(key))})  # fmt: skip
        if names:
            values = ", ".join(f"rank {step.rank} {step.settings[0].get(names[0])}" for step in group)
            return _Cause(f"the gradients agree, but {names[0]} does not ({values})",
                          "give the optimizers of all ranks the same settings")  # fmt: skip
        what = "the gradients agree, but the states of the optimizers do not"
        return _Cause(what, "load or make the state of the optimizer alike on all ranks")
    owns = [p.own for p in each if p.own is not None]
    if (
        len(taken[0]) > 1
        and _are_multiples(taken)
        and (_have_one_gradient(each) or len(owns) < len(each) or not _are_multiples(owns))
    ):
        return _Cause("all ranks have its gradient in common, each scaled by its own factor",
                      "scale and clip by what all ranks have in common", is_sure=True)  # fmt: skip
    all_steps = (step.parameters.get(name) for step in run.steps)
    sent = next((p.sent_at for p in all_steps if p is not None and p.sent_at), "")
    joined = [step.rank for step, p in zip(group, each, strict=True) if p.sent_at]
    if joined and len(joined) < len(each):
        what = f"{ranks(joined)} all-reduced its gradient at {sent}, and no other rank did"
        return _Cause(what, "all-reduce it on all ranks, in a group of all", sent, joined[0], is_sure=True)
    if sent:
        what = f"the call at {sent} does not change the gradient that each rank steps by"
        return _Cause(what, "all-reduce p.grad itself, between backward() and step()", sent, is_sure=True)
    if all(p.own is not None and p.taken is not None and multiple(p.own, p.taken) for p in each):
        how = frozenset().union(*(step.how for step in group))
        if "inner" in how:
            return _Cause(
                "the model inside of DDP was called, so no gradient was all-reduced", "call the DDP model itself"
            )
        if "no_sync" in how and "ddp" not in how:
            return _Cause(
                "no_sync() was on, so no gradient was all-reduced", "leave no_sync() for the last backward pass"
            )
        return _Cause("its gradient was never all-reduced", "all-reduce the gradients of all parameters")
    return _Cause("the ranks take different gradients", "all-reduce the gradients of all parameters")


def _have_one_gradient(each: Sequence[Parameter]) -> bool:
    """Return whether the gradient that reached each rank is the same, as of a layer that is not cut."""
    own = [p.own for p in each if p.own is not None]
    return len(own) == len(each) and equal(*own) and bool(np.any(own[0]))


def _scaled(each: Sequence[Parameter]) -> bool:
    """Return whether all ranks take one gradient that is not the own one of each, but for a factor."""
    taken, own = [p.taken for p in each if p.taken is not None], [p.own for p in each if p.own is not None]
    return len(taken) == len(own) == len(each) and _are_multiples(taken) and not _are_multiples(own)


def _are_multiples(sketches: list[Sketch]) -> bool:
    return all(multiple(sketches[0], other) is not None for other in sketches)


def _differs_before(
    run: Run, group: list[Step], before: list[Step] | None, name: str, each: list[Parameter]
) -> list[Finding]:
    """Find what was made different before a step, though its gradients are shared."""
    if not (shared(each) or _scaled(each)):
        return []
    number, values = group[0].number, values_of(group, each)
    if before is not None and all(name in step.parameters for step in before):
        last = [step.parameters[name] for step in before]
        if not agree(last, lambda p: p.after):
            return []
        changed = [step.rank for step, p, q in zip(group, each, last, strict=True) if not equal(p.before, q.after)]
        at = _written(group, changed, name) or group[0].at
        is_all = len(changed) == len(each)
        cause = "each rank changed it in its own way" if is_all else f"only {ranks(changed)} changed it"
        cure = "change it alike on all ranks"
        if alone := run.between(before[0], group[0]):
            cause, cure = f"only {ranks(step.rank for step in alone)} took a step", "let all ranks step, or none"
            at, changed = alone[0].at, [alone[0].rank]
        what = f"{shown(name)} differs between ranks before step {number}{values}: {cause}"
        return [Finding(KIND, what, cure, at, step=number, rank=changed[0], parameter=shown(name))]
    what = f"{shown(name)} differs between ranks from the start{values}, and they share its gradient"
    return [Finding(KIND, what, "broadcast the parameters of rank 0 first", group[0].at, step=number,
                    parameter=shown(name))]  # fmt: skip


def _changed_beside_server(group: list[Step]) -> list[Finding]:
    """Find a parameter that a worker changed, though a server gives it all of them before the next step."""
    for step in group if SERVER in group[0].how else ():
        for name, at in step.written.items():
            what = f"rank {step.rank} changed {shown(name)} before step {step.number}, but the server has the model"
            return [Finding(KIND, what, "change no parameter between two steps", at, step=step.number, rank=step.rank,
                            parameter=shown(name))]  # fmt: skip
    return []


def _written(group: Sequence[Step], by: Sequence[int], name: str) -> str:
    """Return the line where one of these ranks has changed a parameter since the step before; "": none is known."""
    return next((step.written[name] for step in group if step.rank in by and name in step.written), "")


def _summed(group: list[Step], before: list[Step], name: str, each: list[Parameter]) -> list[Finding]:
    """Find a parameter that is the sum of what all ranks had after the step before."""
    last = [step.parameters[name].after for step in before if name in step.parameters]
    total: Sketch = np.sum(last, axis=0) if len({found.shape for found in last}) == 1 else np.zeros(1)
    if len(last) < len(before) or not np.any(total) or not equal(total, each[0].before):
        return []
    what = f"{shown(name)} is the sum of the ranks' ones before step {group[0].number}, {len(group)} times their mean"
    at = _written(group, [step.rank for step in group], name) or group[0].at
    return [Finding("average is a sum", what, "divide by the number of ranks", at, step=group[0].number,
                    parameter=shown(name))]  # fmt: skip


def _overwritten_by_ddp(run: Run) -> list[Finding]:
    """Find steps that are lost when DDP is made once more: it gives all ranks the parameters of rank 0."""
    for of_ranks in run.wrapped:
        (first, at), *others = of_ranks.values()
        for name in first if len(of_ranks) == run.n else ():
            if not equal(first[name], *(found[name] for found, _ in others if name in found)):
                what = f"{shown(name)} differs between ranks after steps, when DDP is made, which takes that of rank 0"
                return [Finding(KIND, what, "make DDP once, and call it in each step", at, parameter=shown(name))]
    return []


def _changed_since_ddp(run: Run) -> list[Finding]:
    """Find what only some ranks changed between the making of DDP and the first step."""
    group = next(run.groups(), None)
    for name, each in dict(common(group)).items() if group and run.made else ():
        made = [run.made.get(rank, {}).get(name) for rank in range(run.n)]
        found = [(rank, p, one) for rank, (p, one) in enumerate(zip(each, made, strict=True)) if one is not None]
        changed = [rank for rank, p, (then, _) in found if not equal(p.before, then)]
        if len(found) == run.n and changed and not agree(each, lambda p: p.before) and group:
            at = _written(group, changed, name) or next(line for _, _, (_, line) in found)
            what = f"{shown(name)} differs between ranks in step 1{values_of(group, each)}: changed after DDP was made"
            return [Finding(KIND, what, "change the model before DDP is made, or on all ranks", at, step=1,
                            rank=changed[0], parameter=shown(name))]  # fmt: skip
    return []


def meets_later(run: Run, group: list[Step], name: str) -> bool:
    """Return whether a parameter is equal on all ranks again at a later step or at the end."""
    index, _, _ = group[0].key
    later = False
    for other in run.groups():
        if other is not group and later and other[0].key[0] == index:
            each = dict(common(other)).get(name)
            if each and (agree(each, lambda p: p.before) or agree(each, lambda p: p.after)):
                return True
        later = later or other[0] is group[0]
    ends = [end[name] for end in run.ends if name in end]
    return len(ends) == len(run.members) and equal(*ends)


def values_of(group: Sequence[Step], each: Sequence[Parameter], after: bool = False) -> str:
    """Return the first element on two ranks, where it differs."""
    found = [(step.rank, p.last if after else p.first) for step, p in zip(group, each, strict=True)]
    (first, value), (other, differs) = found[0], max(found, key=lambda pair: abs(pair[1] - found[0][1]))
    return f" (rank {first} {value:.6g}, rank {other} {differs:.6g})" if differs != value else ""
