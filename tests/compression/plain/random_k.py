"""rand_k with memory, algorithm 1 of Stich, Cordonnier and Jaggi, 2018, with the same draw from numpy's generator."""

import numpy as np
import torch

from gradwire.compression.random_k import RandomK
from tests.compression.plain import PlainRun, Step

OPTIONS = [{}, {"density": 0.5}, {"density": 0.2, "error_decay": 0.5}]


def plain_program(run: PlainRun, options: RandomK) -> list[Step]:
    """r <- beta r + g; send the drawn elements of r and clear them."""
    residuals, received = [torch.zeros_like(g) for g in run.steps[0]], []
    for number, gradients in enumerate(run.steps):
        draw, sent = np.random.default_rng([run.seed, number]), []
        for i, g in enumerate(gradients):
            k = max(1, int(options.density * g.numel()))
            drawn = np.zeros(g.numel(), bool)
            drawn[draw.choice(g.numel(), k, replace=False, shuffle=False)] = True
            r = options.error_decay * residuals[i] + g
            sent.append(torch.where(torch.from_numpy(drawn).view(g.shape), r, 0.0))
            residuals[i] = r - sent[i]
        received.append(sent)
    return received
