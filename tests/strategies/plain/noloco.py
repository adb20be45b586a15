"""N models in one loop, the exchange as in the paper."""

import numpy as np
import torch

from strategies import NoLoCo
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [{}, {"local_steps": 1}, {"local_steps": 3, "outer_lr": 0.9, "consensus_lr": 1.1}]


def plain_program(run: PlainRun, options: NoLoCo) -> Trajectories:
    """d_m <- a d_m + b mean of the pair's movements - c (x0_m - mean of the pair's x0)."""
    a, b, c, N = options.outer_momentum, options.outer_lr, options.consensus_lr, len(run.workers)
    own, x0, d = ([x.clone() for _ in run.workers] for x in (run.x, run.x, torch.zeros_like(run.x)))
    seen = []
    for i in range(run.steps):
        for m in run.workers:
            own[m] = own[m] - run.lr * run.gradient(own[m], i, m)
        number, rest = divmod(i + 1, options.local_steps)
        if not rest:
            order = np.random.default_rng([0, number]).permutation(N).tolist()  # whoever stand beside each other
            was, moved = list(x0), [own[m] - x0[m] for m in run.workers]
            for m in run.workers:
                at = order.index(m) ^ 1
                j = order[at] if at < N else m
                d[m] = a * d[m] + b / 2 * (moved[m] + moved[j]) - c * (was[m] - (was[m] + was[j]) / 2)
                x0[m] = was[m] + d[m]
            own = list(x0)
        seen.append(torch.stack(own))
    return list(torch.stack(seen, dim=1))
