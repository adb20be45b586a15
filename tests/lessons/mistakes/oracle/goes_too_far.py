"""Gives every rank as many samples, rounded up, and so goes into the next batch."""

from lessons.solutions.oracle import average, one_process, verify  # noqa: F401 - these are right


def cut(n_samples: int, B: int, N: int) -> list[list[range]]:
    plan = []
    for start in range(0, n_samples, B):
        size = -(-min(B, n_samples - start) // N)
        plan.append([range(start + size * k, start + size * (k + 1)) for k in range(N)])
    return plan
