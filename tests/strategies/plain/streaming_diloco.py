"""N models in one loop, x0 and the momentum of each, and what was sent of a fragment last."""

import torch

from strategies import StreamingDiLoCo
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [
    {},
    {"local_steps": 3, "delay": 2, "blend": 0.25},
    {"local_steps": 5, "delay": 0, "blend": 0.5, "outer_lr": 0.5, "outer_momentum": 0.0},
    {"fragments": 9, "local_steps": 1, "delay": 0, "blend": 0.75},
    {"local_steps": 3, "eager": True},
    {"fragments": 1, "local_steps": 4, "eager": True},
    {"local_steps": 3, "delay": 1, "blend": 0.5, "strided": True},
]
CUT = 42  # the elements of the model's first block


def plain_program(run: PlainRun, options: StreamingDiLoCo) -> Trajectories:
    """A fragment is sent each H steps, and used tau later; if eager at once, with what the others sent before."""
    H, size = options.local_steps, len(run.x)
    tau = min(1, H - 1) if options.delay is None else options.delay
    alpha = 0.5 if options.blend is None else options.blend
    parts = [slice(0, size)] if options.fragments == 1 else [slice(0, CUT), slice(CUT, size)]
    own, x0 = [run.x for _ in run.workers], [run.x for _ in run.workers]
    velocity = [torch.zeros_like(run.x) for _ in run.workers]
    taken, seen = [[0 for _ in run.workers] for _ in parts], []
    sent: dict[int, list[tuple[torch.Tensor, int]]] = {}

    def outer_step(k: int, part: slice, d: torch.Tensor) -> None:
        velocity[k][part] = options.outer_momentum * velocity[k][part] + d
        x0[k][part] -= options.outer_lr * (d + options.outer_momentum * velocity[k][part])

    for t in range(1, run.steps + 1):
        for p, part in enumerate(parts):  # before the forward pass
            if (t - 1 - p * H // len(parts) - tau) % H == 0 and p in sent and not options.eager:
                for k in run.workers:
                    outer_step(k, part, x0[k][part] - mean(sent[p]))
                    own[k][part] = alpha * own[k][part] + (1 - alpha) * x0[k][part]
        for k in run.workers:
            own[k] = own[k] - run.lr * run.gradient(own[k], t - 1, k)
            for of_part in taken:
                of_part[k] += run.n(t - 1, k)
        for p, part in enumerate(parts):
            after = (t - p * H // len(parts)) % H
            if after == 0 and options.eager:
                now = [(x0[k][part] - own[k][part], n) for k, n in enumerate(taken[p])]
                before = sent.get(p, [(torch.zeros_like(d), n) for d, n in now])
                for k in run.workers:
                    n_first = None if p in sent else now[k][1]  # nobody has sent yet: all weigh as this one
                    others = [(d, n_first or n) for j, (d, n) in enumerate(before) if j != k]
                    outer_step(k, part, mean([now[k], *others]))
                    own[k][part] = x0[k][part]
                sent[p] = now
            elif after == 0:
                sent[p] = [(own[k][part].clone(), n) for k, n in enumerate(taken[p])]
            if after == 0:
                taken[p] = [0 for _ in run.workers]
        seen.append(torch.stack(own))
    return list(torch.stack(seen, dim=1))


def mean(pairs: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """Return the mean of vectors, by their samples."""
    return torch.stack([n * x for x, n in pairs]).sum(0) / sum(n for _, n in pairs)
