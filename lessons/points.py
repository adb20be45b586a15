"""Partial credit for wrong submissions: right functions, their parts, and functions right in the first cases."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from lessons.lab import Case, Fault, Lab, Run, first

OF_OTHERS = 1 / 3  # of the points for right results, if another algorithm than the lab's gives them
BEGUN = 0.5  # of the points of a function that is right in its first cases, but not in all


def has_none(find: Callable[[Run], Iterable[str]]) -> Callable[[Run], bool]:
    """Return whether these faults are not in a run."""
    return lambda run: not first(find(run))


def judged_right(lab: Lab, case: Case) -> tuple[str, ...]:
    """Return the functions whose own cases all come before this one, or one behind `lab.cases`."""
    whole = lab.whole or lab.functions[-1]
    is_for = [lab.function_of(own_case) or whole for own_case in lab.cases]
    begin = lab.cases.index(case) if case in lab.cases else len(lab.cases)
    before, behind = is_for[:begin], is_for[begin:] or [whole]
    return tuple(name for name in lab.functions if name in before and name not in behind)


def parts_right(lab: Lab, run: Run, fault: Fault, right: Sequence[str]) -> dict[str, float]:
    """Return the parts that are right in the functions of a faulty run, as shares of the lab, by name."""
    shares: dict[str, float] = {}
    n_parts = 0
    for function in _wrong(lab, run.case, right):
        parts = lab.parts.get(function, {})
        n_parts += len(parts)
        share = 1 / max(len(parts), 1) / len(lab.functions)
        shares |= {part: share for part, holds in parts.items() if part in fault.right or _holds(lab, holds, run)}
    if shares and len(shares) == n_parts:
        shares.popitem()  # something is wrong, after all
    return shares


def _holds(lab: Lab, holds: Callable[[Run], bool], run: Run) -> bool:
    try:
        return bool(run.results or lab.looks_at_messages) and holds(run)
    except RuntimeError:  # of vectors that do not fit together: of other lengths, say
        return False


def best_of(lab: Lab, case: Case, right: Sequence[str], parts: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the lab for these parts, or those for all cases like this one that came before, if more."""
    cases = [*lab.cases, lab.scored]
    alike = [other for other in cases if lab.function_of(other) == lab.function_of(case)]
    wrong = _wrong(lab, case, right)
    share = BEGUN * len(wrong) / len(lab.functions)
    if case == alike[0] or not wrong or sum(parts.values()) >= share:
        return dict(parts)
    return {f"the first cases of {' and '.join(wrong)}": share}


def _wrong(lab: Lab, case: Case, right: Sequence[str]) -> list[str]:
    return [name for name in lab.functions if name not in right and lab.function_of(case) in ("", name)]
