"""N times Adam by its formulas, and weighted means of x_k, u_k and v_k."""

import torch

from strategies import DESLOC
from tests.strategies.plain import PlainRun, Trajectories

OPTIMIZER = "adam"
OPTIONS = [
    {},
    {"local_steps": 2},
    {"local_steps": 3, "first_period": 2, "second_period": 5},
    {"local_steps": 1, "first_period": 1, "second_period": 1},
]
RATE, B1, B2, EPS = 0.01, 0.9, 0.999, 1e-8


def plain_program(run: PlainRun, options: DESLOC) -> Trajectories:
    """Each of the three is averaged when its period ends."""
    H, N = options.local_steps, len(run.workers)
    periods = (H, options.first_period or 3 * H, options.second_period or 6 * H)
    states = torch.stack([torch.stack([run.x] * N), torch.zeros(N, len(run.x)), torch.zeros(N, len(run.x))])
    n, seen = torch.zeros(3, N, dtype=torch.float64), []
    for t in range(1, 1 + run.steps):
        for k in run.workers:
            x, u, v = states[:, k]
            g = run.gradient(x, t - 1, k)
            u, v = B1 * u + (1 - B1) * g, B2 * v + (1 - B2) * g**2
            x = x - RATE * (u / (1 - B1**t)) / ((v / (1 - B2**t)).sqrt() + EPS)
            states[:, k] = torch.stack([x, u, v])
            n[:, k] += run.n(t - 1, k)
        for i, K in enumerate(periods):
            if t % K == 0:
                states[i] = (n[i] / n[i].sum()) @ states[i]
                n[i] = 0
        seen.append(states[0].clone())
    return list(torch.stack(seen, dim=1))
