"""N models in one loop; a few elements of all become their mean."""

import numpy as np
import torch

from strategies import Sparta
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [{}, {"fraction": 0.5}, {"fraction": 1.0}]


def plain_program(run: PlainRun, options: Sparta) -> Trajectories:
    """x_k[S] <- mean over k of x_k[S]."""
    own, seen = torch.stack([run.x for _ in run.workers]), []
    size = own.shape[1]
    for i in range(run.steps):
        for k in run.workers:
            own[k] -= run.lr * run.gradient(own[k].clone(), i, k)
        random = np.random.default_rng([0, i + 1])  # seed and step
        S = random.choice(size, max(1, int(size * options.fraction)), replace=False, shuffle=False)
        own[:, S] = own[:, S].mean(0)
        seen.append(own.clone())
    return list(torch.stack(seen, dim=1))
