"""Always makes one step more than there are whole batches, which has nothing where they come out even."""

from lessons.solutions.oracle import average, one_process, verify  # noqa: F401 - these are right


def cut(n_samples: int, B: int, N: int) -> list[list[range]]:
    plan = []
    for start in range(0, n_samples + 1, B):
        size = min(B, n_samples - start)
        plan.append([range(start + size * k // N, start + size * (k + 1) // N) for k in range(N)])
    return plan
