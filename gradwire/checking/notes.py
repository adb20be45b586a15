"""Notes where no replica is found to part: what differs between ranks, and may be meant."""

from gradwire.checking.findings import Finding
from gradwire.checking.replicas import KIND, agree, meets_later, values_of
from gradwire.checking.seen import STRATEGY, Run, common, ranks, shown
from gradwire.checking.sketch import equal


def judge(run: Run) -> list[Finding]:
    """Note ranks that train alone, ranks in other modes, and buffers that end apart though their parameters agree."""
    for group in run.groups():
        still = [step.rank for step in group if "eval" in step.how]
        if 0 < len(still) < len(group):
            what = f"in step {group[0].number} the model is in eval mode on {ranks(still)}, and not on others"
            at = next(step.at for step in group if step.rank == still[0])
            return [Finding("mode differs", what, "call model.train() after each validation", at, True, rank=still[0])]
    group = next(reversed(list(run.groups())), [])
    if other := _never_shared(run) or _unstepped(run):
        return other
    if not group or not group[0].buffers or any({"ddp", STRATEGY} & step.how for step in group):
        return []
    if not all(agree(each, lambda p: p.after) for _, each in common(group)):
        return []
    for name in group[0].buffers:
        found = [step.buffers.get(name) for step in group]
        if all(each is not None for each in found) and not equal(*found):  # type: ignore[arg-type]
            what = f"the buffer {shown(name)} differs between ranks, though their parameters agree"
            return [Finding("buffers part", what, "broadcast the buffers, or use SyncBatchNorm", group[0].at, True,
                            parameter=shown(name))]  # fmt: skip
    return []


def _never_shared(run: Run) -> list[Finding]:
    """Note parameters that agree before the first step and never again, where no rank shares a gradient."""
    groups = list(run.groups())
    if run.parallel or any(step.shares for step in run.steps):
        return []
    for name, each in common(groups[0]) if groups else ():
        taken = [p.taken for p in each if p.taken is not None]
        if len(taken) < len(each) or not agree(each, lambda p: p.before) or equal(*taken):
            continue
        if agree(each, lambda p: p.after) or meets_later(run, groups[0], name):
            continue
        what = f"{shown(name)} differs between ranks since step 1{values_of(groups[0], each, after=True)}: "
        return [Finding(KIND, f"{what}no rank shares its gradients", "all-reduce them, if all ranks train one model",
                        groups[0][0].at, True, step=1, parameter=shown(name))]  # fmt: skip
    return []


def _unstepped(run: Run) -> list[Finding]:
    """Note parameters that no optimizer steps, as of a teacher, which end apart though those that are stepped agree."""
    ends = [run.ends[rank] for rank in run.members]
    stepped = {name for step in run.steps for name in step.parameters}
    apart = [name for name in ends[0] if all(name in end for end in ends) and not equal(*(end[name] for end in ends))]
    if run.parallel or not run.is_whole or not stepped or not apart or stepped & set(apart):
        return []
    what = f"{shown(apart[0])} differs between ranks at the end, in a model that no optimizer steps"
    return [Finding(KIND, what, "change it alike on all ranks", run.steps[-1].at, True, parameter=shown(apart[0]))]
