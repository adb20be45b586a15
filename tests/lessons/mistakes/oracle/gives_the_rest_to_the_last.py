"""Gives what is left over to the last rank."""

from lessons.solutions.oracle import average, one_process, verify  # noqa: F401 - these are right


def cut(n_samples: int, B: int, N: int) -> list[list[range]]:
    plan = []
    for start in range(0, n_samples, B):
        stop = min(start + B, n_samples)
        size = (stop - start) // N
        firsts = [start + size * k for k in range(N)]
        plan.append([range(a, b) for a, b in zip(firsts, [*firsts[1:], stop], strict=True)])
    return plan
