"""Fills up parts with samples that were taken already, as a DistributedSampler does."""

from lessons.solutions.oracle import average, one_process, verify  # noqa: F401 - these are right


def cut(n_samples: int, B: int, N: int) -> list[list[list[int]]]:
    size = -(-B // N)
    plan = []
    for start in range(0, n_samples, B):
        left = min(B, n_samples - start)
        plan.append([[start + (size * k + i) % left for i in range(size)] for k in range(N)])
    return plan
