"""Pushes in the order in which the server took them; the largest elements of each tensor go both ways."""

import torch

from strategies import DGS
from tests.strategies.plain import PlainRun, Trajectories

OPTIMIZER = "decayed"
OPTIONS = [{}, {"density": 0.2}, {"density": 0.2, "downlink": False}, {"density": 0.2, "per_tensor": False}]
RATE, M, DECAY = 0.2, 0.5, 0.01
SIZES = [35, 7, 21, 3]  # of the tensors of the model


def plain_program(run: PlainRun, options: DGS) -> Trajectories:
    """u <- m u + eta g; x <- x - s, s = top_R(u); where it is not sent u <- u / m. Back comes G = top_R(x - x_k)."""
    sizes = SIZES if options.per_tensor else [sum(SIZES)]

    def top(v: torch.Tensor) -> torch.Tensor:
        parts = []
        for part in v.split(sizes):
            kept = part.abs().argsort(descending=True)[: max(1, int(len(part) * options.density))]
            parts.append(torch.zeros_like(part).index_copy(0, kept, part[kept]))
        return torch.cat(parts)

    x, samples, last = run.x, 0, list[int]()
    own, u = [run.x for _ in run.workers], [torch.zeros_like(x) for _ in run.workers]
    steps, seen = [0 for _ in run.workers], [list[torch.Tensor]() for _ in run.workers]

    def answer(k: int) -> None:
        G = top(x - own[k]) if options.downlink else x - own[k]
        own[k] = own[k] + G
        seen[k].append(own[k])

    for k, _ in run.received("push"):
        g = run.gradient(own[k], steps[k], k) + DECAY * own[k]
        u[k] = M * u[k] + RATE * g
        s = top(u[k])
        x, u[k] = x - s, torch.where(s != 0, u[k], u[k] / M)
        samples, steps[k] = samples + run.n(steps[k], k), steps[k] + 1
        if samples >= run.samples:
            last.append(k)
        else:
            answer(k)
    for k in last:
        answer(k)
    return [torch.stack(of_worker) for of_worker in seen]
