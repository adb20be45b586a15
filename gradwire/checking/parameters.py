"""Parameters that never learn: without a gradient, or in no optimizer.

Silent: about frozen parameters, and where only some of a model's parameters are in an optimizer (a note).
"""

from gradwire.checking.findings import Finding
from gradwire.checking.seen import Run, shown

KIND = "parameter does not learn"


def judge(run: Run) -> list[Finding]:
    """Return what never learns, by name."""
    findings: list[Finding] = []
    members = run.members
    of_ranks = [run.models[rank] for rank in members]
    names = [name for name in (of_ranks[0] if members else ()) if all(name in models for models in of_ranks)]
    steps = [step for step in run.steps if step.rank == members[0]] if members else []
    if not names or not steps:
        return []
    at = steps[0].at
    has = {name: [models[name].has_gradient for models in of_ranks] for name in names}
    stepped = {name: any(models[name].is_stepped for models in of_ranks) for name in names}
    missing = [name for name in names if any(has[name]) and not stepped[name] and _learns(run, name)]
    orphans = [orphan for rank in run.orphans for orphan in rank.items()]
    if orphans and missing:
        line = orphans[0][1]
        what = f"{_listed(missing)} {_are(missing)} in no optimizer, and the optimizer steps what no model uses"
        findings.append(Finding(KIND, what, "make the optimizer after the last change of the model", line,
                                parameter=shown(missing[0])))  # fmt: skip
    elif missing:
        what = f"{_listed(missing)} {_are(missing)} in no optimizer"
        findings.append(Finding(KIND, what, "give it to the optimizer, or freeze it by requires_grad_(False)", at, True,
                                parameter=shown(missing[0])))  # fmt: skip
    given = {name for name in names if any(models[name].is_given for models in of_ranks)}
    unused = [name for name in names if stepped[name] and not any(has[name]) and name not in given]
    if unused and not (orphans and missing) and any(all(values) for values in has.values()) and len(steps) > 1:
        what = f"{_listed(unused)} never {'gets' if len(unused) == 1 else 'get'} a gradient on any rank"
        findings.append(Finding(KIND, what, "use it in the forward pass, or leave it out", at,
                                not run.is_whole or set(unused) <= run.may_be_unused,
                                parameter=shown(unused[0])))  # fmt: skip
    strays = [run.strays[rank] for rank in members]
    if run.is_whole and (shapes := strays[0]) and all(strays):
        count = f"{len(shapes)} parameters" if len(shapes) > 1 else "a parameter"
        what = f"{count} of no model, of shape {', '.join(map(str, shapes[:3]))}, learn by no optimizer"
        findings.append(Finding(KIND, what, "keep layers in an nn.ModuleList, not in a list", at, True))
    partly = [name for name in names if stepped[name] and any(has[name]) and not all(has[name])]
    if partly and not run.parallel:
        without = [rank for rank, value in zip(members, has[partly[0]], strict=True) if not value]
        what = (
            f"{_listed(partly)} {'gets' if len(partly) == 1 else 'get'} no gradient on rank {without[0]}, but on others"
        )
        findings.append(Finding(KIND, what, "use it on all ranks, if that is meant", at, True, rank=without[0],
                                parameter=shown(partly[0])))  # fmt: skip
    return findings


def _learns(run: Run, name: str) -> bool:
    """Return whether a gradient reaches a parameter that is not frozen."""
    return any(name in rank for rank in run.trained)


def _listed(names: list[str]) -> str:
    text = ", ".join(shown(name) for name in names[:3])
    return text + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
