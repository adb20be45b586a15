"""Algorithms 1 and 2 of Vogels, Karimireddy and Jaggi, 2019, on one worker, from the same random Q."""

import numpy as np
import torch

from gradwire.compression.powersgd import PowerSGD
from tests.compression.plain import PlainRun, Step

OPTIONS = [{}, {"rank": 1}, {"rank": 3, "warm_start": False}, {"rank": 2, "error_decay": 0.5}]


def plain_program(run: PlainRun, options: PowerSGD) -> list[Step]:
    """M = G + beta e; P = orthogonalize(M Q); Q = M^T P; send P Q^T; e = M - P Q^T. A vector is sent as it is."""
    r = options.rank
    shapes = {i: (len(g), g[0].numel()) for i, g in enumerate(run.steps[0]) if g.dim() > 1}
    errors = {i: torch.zeros(shape, dtype=torch.float64) for i, shape in shapes.items()}
    Qs, received = dict[int, torch.Tensor](), []
    for step, gradients in enumerate(run.steps):
        if step == 0 or not options.warm_start:
            seed = np.random.SeedSequence([run.seed, step]).generate_state(1, np.uint64)[0]
            columns = [columns for _, columns in shapes.values()]
            drawn = torch.randn(
                r * sum(columns), generator=torch.Generator().manual_seed(int(seed)), dtype=torch.float64
            )
            parts = drawn.split([r * n for n in columns])
            Qs = {i: part.view(-1, r) for i, part in zip(shapes, parts, strict=True)}
        sent = list(gradients)
        for i, shape in shapes.items():
            M = gradients[i].view(shape) + options.error_decay * errors[i]
            P = orthogonalized(M @ Qs[i])
            Qs[i] = M.T @ P
            errors[i] = M - P @ Qs[i].T
            sent[i] = (P @ Qs[i].T).view(gradients[i].shape)
        received.append(sent)
    return received


def orthogonalized(P: torch.Tensor) -> torch.Tensor:
    """Return the columns of P made orthonormal by Gram and Schmidt."""
    columns = list[torch.Tensor]()
    for p in P.T:
        for earlier in columns:
            p = p - earlier * (earlier @ p)
        columns.append(p / p.norm())
    return torch.stack(columns, dim=1)
