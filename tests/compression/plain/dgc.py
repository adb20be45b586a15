"""Algorithm 4 of Lin and others, 2018: momentum correction, local clipping, factor masking and the warm-up of R."""

import math

import torch

from gradwire.compression.dgc import DGC
from tests.compression.plain import PlainRun, Step
from tests.compression.plain.topk import largest

OPTIONS = [
    {},
    {"density": 0.1, "warmup_epochs": 0},
    {"density": 0.3, "warmup_epochs": 0, "masking": False},
    {"density": 0.1, "local_clip": 20.0},
    {"density": 0.3, "warmup_epochs": 0, "half_values": True},
]


def plain_program(run: PlainRun, options: DGC) -> list[Step]:
    """u <- m u + g; v <- v + u; q = top_R(v); v <- v - q; u <- 0 where it is sent."""
    u, v = ([torch.zeros_like(g) for g in run.steps[0]] for _ in range(2))
    received = []
    for epoch, gradients in enumerate(run.steps):
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        limit = options.local_clip / math.sqrt(run.workers) if options.local_clip else norm
        share, quarters = options.density, 4 * epoch // options.warmup_epochs if options.warmup_epochs else 4
        if quarters < 4:
            share = max(share, (0.25, 0.0625, 0.015625, 0.004)[quarters])
        sent = []
        for i, g in enumerate(gradients):
            u[i] = run.momentum * u[i] + g * min(1, limit / norm)
            v[i] = v[i] + u[i]
            q = largest(v[i], share)
            if options.masking:
                u[i] = torch.where(q != 0, 0.0, u[i])
            sent.append(q.half().double() if options.half_values else q)
            v[i] = v[i] - sent[i]
        received.append(sent)
    return received
