"""What is right in functions that are not: whole functions, their parts, and how they do in the first cases."""

from collections.abc import Mapping, Sequence

from lessons.lab import Case, Fault, Lab, Run

OF_OTHERS = 1 / 3  # of the points for right results, if another algorithm than the lab's gives them
BEGUN = 0.5  # of the points of a function that is right in its first cases, but not in all


def judged_right(lab: Lab, case: Case) -> tuple[str, ...]:
    """Return the functions whose own cases all come before this one, or one behind `lab.cases`."""
    whole = lab.whole or lab.functions[-1]
    is_for = [lab.function_of(one) or whole for one in lab.cases]
    begin = lab.cases.index(case) if case in lab.cases else len(lab.cases)
    before, behind = is_for[:begin], is_for[begin:] or [whole]
    return tuple(name for name in lab.functions if name in before and name not in behind)


def parts_right(lab: Lab, run: Run, fault: Fault, right: Sequence[str]) -> dict[str, float]:
    """Return what is right in the functions that a run with a fault is for, as shares of the lab, by its name."""
    parts = {part: (holds, len(of_one)) for function in _wrong(lab, run.case, right)
             for of_one in [lab.parts.get(function, {})] for part, holds in of_one.items()}  # fmt: skip
    shares = {
        part: 1 / n / len(lab.functions) for part, (holds, n) in parts.items() if part in fault.right or holds(run)
    }
    if shares and len(shares) == len(parts):
        shares.popitem()  # something is wrong, after all
    return shares


def best_of(lab: Lab, case: Case, right: Sequence[str], parts: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the lab for these parts, or those for all cases like this one that came before, if more."""
    cases = [*lab.cases, lab.scored]
    alike = [one for one in cases if lab.function_of(one) == lab.function_of(case)]
    wrong = _wrong(lab, case, right)
    share = BEGUN * len(wrong) / len(lab.functions)
    if case == alike[0] or not wrong or sum(parts.values()) >= share:
        return dict(parts)
    return {f"the first cases of {' and '.join(wrong)}": share}


def _wrong(lab: Lab, case: Case, right: Sequence[str]) -> list[str]:
    return [name for name in lab.functions if name not in right and lab.function_of(case) in ("", name)]
