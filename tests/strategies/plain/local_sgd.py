"""N models in one loop, and DiLoCo's outer step by its formulas."""

import torch

from strategies import LocalSGD
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [
    {},
    {"local_steps": 3},
    {"local_steps": 1, "outer_optimizer": "nesterov"},
    {"local_steps": 5, "outer_optimizer": "nesterov", "outer_lr": 0.5, "outer_momentum": 0.5},
    {"local_steps": 3, "outer_optimizer": "nesterov", "outer_lr": 1.0, "outer_momentum": 0.0},
]


def plain_program(run: PlainRun, options: LocalSGD) -> Trajectories:
    """After H steps, the x before the round takes a step of SGD by its distance from the mean."""
    averages = options.outer_optimizer == "average"
    lr = 1.0 if averages else options.outer_lr or 0.7
    momentum = 0.0 if averages else 0.9 if options.outer_momentum is None else options.outer_momentum
    own, before, velocity = [run.x for _ in run.workers], run.x, torch.zeros_like(run.x)
    n, seen = [0 for _ in run.workers], []
    for i in range(run.steps):
        for k in run.workers:
            own[k] = own[k] - run.lr * run.gradient(own[k], i, k)
            n[k] += run.n(i, k)
        if (i + 1) % options.local_steps == 0:
            d = before - sum(n[k] * own[k] for k in run.workers) / sum(n)
            velocity = momentum * velocity + d
            before = before - lr * (d + momentum * velocity)
            own, n = [before for _ in run.workers], [0 for _ in run.workers]
        seen.append(torch.stack(own))
    return list(torch.stack(seen, dim=1))
