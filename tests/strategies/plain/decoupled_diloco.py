"""Learners that wait for each merge: else the moment when a learner looks decides."""

import torch

from strategies import DecoupledDiLoCo
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [
    {"wait": True},
    {"wait": True, "local_steps": 1, "fragments": 3, "outer_momentum": 0.0},
    {"wait": True, "local_steps": 3, "outer_lr": 0.6, "outer_momentum": 0.8},
    {"wait": True, "local_steps": 2, "fragments": 5},
]


def plain_program(run: PlainRun, options: DecoupledDiLoCo) -> Trajectories:
    """Every H steps the next fragment of X takes an outer step by its distance from the learners' weighted mean."""
    P, N, X = options.fragments, len(run.workers), run.x
    own, velocity, cut = [run.x for _ in run.workers], torch.zeros_like(X), torch.arange(len(X)).tensor_split(P)
    n, taken, t = torch.zeros(P, N, dtype=X.dtype), [0] * P, 0  # samples and steps since the fragment was sent
    samples, seen = 0, []
    while samples < run.samples or t % options.local_steps:
        for m in run.workers:
            own[m] = own[m] - run.lr * run.gradient(own[m], t, m)
            n[:, m] += run.n(t, m)
            samples += run.n(t, m)
        taken, t = [count + 1 for count in taken], t + 1
        if t % options.local_steps == 0:
            p = (t // options.local_steps - 1) % P
            part, w = cut[p], n[p] * n[p] / taken[p]
            d = X[part] - w / w.sum() @ torch.stack([x[part] for x in own])
            velocity[part] = options.outer_momentum * velocity[part] + d
            X[part] -= options.outer_lr * (d + options.outer_momentum * velocity[part])
            for x in own:
                x[part] = X[part]
            n[p], taken[p] = 0, 0
        seen.append(torch.stack(own))
    return list(torch.stack(seen, dim=1))
