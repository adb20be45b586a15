"""M_k as the paper has it, and scipy's transform."""

from functools import partial

import scipy.fft
import torch

from strategies import DeMo
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [
    {"chunk_size": 8, "top_k": 2, "momentum_decay": 0.9},
    {"chunk_size": 4, "top_k": 2},
    {},
    {"chunk_size": 16, "top_k": 3, "momentum_decay": 0.0},
]
SIZES = [35, 7, 21, 3]  # of the tensors of the model


def transformed(vector: torch.Tensor, chunk: int, inverse: bool = False) -> list[torch.Tensor]:
    """Return the chunks of each tensor by scipy: their DCT, or of coefficients the inverse."""
    change = partial(scipy.fft.idct if inverse else scipy.fft.dct, norm="ortho")
    return [torch.from_numpy(change(part.numpy())) for tensor in vector.split(SIZES) for part in tensor.split(chunk)]


def plain_program(run: PlainRun, options: DeMo) -> Trajectories:
    """M_k <- beta M_k + g_k, less its largest components, which all add; a step by the sign of their mean."""
    chunk, x, seen = options.chunk_size, run.x, []
    M = torch.zeros(len(run.workers), len(x), dtype=x.dtype)
    for i in range(run.steps):
        mean, n = torch.zeros_like(x), 0
        for k in run.workers:
            g = run.gradient(x, i, k)
            if clip := run.task.clip_norm:
                g = g * min(1.0, clip / g.norm())
            M[k] = options.momentum_decay * M[k] + g
            chunks = transformed(M[k], chunk)
            for c in chunks:
                c[c.abs().argsort(descending=True)[options.top_k :]] = 0
            M[k] -= torch.cat(transformed(torch.cat(chunks), chunk, inverse=True))
            mean, n = mean + run.n(i, k) * torch.cat(chunks), n + run.n(i, k)
        x = x - run.lr * torch.cat(transformed(mean / n, chunk, inverse=True)).sign()
        seen.append(x)
    return [torch.stack(seen) for _ in run.workers]
