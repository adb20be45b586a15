"""All step by the mean of their gradients, by samples."""

import torch

from strategies import Strategy
from tests.strategies.plain import PlainRun, Trajectories


def plain_program(run: PlainRun, options: Strategy) -> Trajectories:
    """x <- x - eta sum of n_k g_k / sum of n_k."""
    x, seen = run.x, []
    for i in range(run.steps):
        n = [run.n(i, k) for k in run.workers]
        g = sum(n[k] * run.gradient(x, i, k) for k in run.workers) / sum(n)
        x = x - run.lr * g
        seen.append(x)
    return [torch.stack(seen) for _ in run.workers]
