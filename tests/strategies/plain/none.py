"""Each trains on its own."""

import torch

from strategies import NoCommunication
from tests.strategies.plain import PlainRun, Trajectories


def plain_program(run: PlainRun, options: NoCommunication) -> Trajectories:
    """x_k <- x_k - eta g_k."""
    seen: list[list[torch.Tensor]] = [[] for _ in run.workers]
    for k in run.workers:
        x = run.x
        for i in range(run.steps):
            x = x - run.lr * run.gradient(x, i, k)
            seen[k].append(x)
    return [torch.stack(own) for own in seen]
