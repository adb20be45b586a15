"""Algorithm 1 of Aji and Heafield, 2017: the largest are sent, the others are added to the next gradient."""

import torch

from gradwire.compression import TopK
from tests.compression.plain import PlainRun, Step

OPTIONS = [{}, {"density": 0.2}, {"density": 0.2, "error_decay": 0.5}, {"density": 0.3, "half_values": True}]


def plain_program(run: PlainRun, options: TopK) -> list[Step]:
    """r <- beta r + g; q = top_R(r); r <- r - q."""
    residuals, received = [torch.zeros_like(g) for g in run.steps[0]], []
    for gradients in run.steps:
        sums = [options.error_decay * r + g for r, g in zip(residuals, gradients, strict=True)]
        sent = [largest(r, options.density) for r in sums]
        if options.half_values:
            sent = [q.half().double() for q in sent]
        residuals = [r - q for r, q in zip(sums, sent, strict=True)]
        received.append(sent)
    return received


def largest(v: torch.Tensor, share: float) -> torch.Tensor:
    """Return v with zeros in place of all but this share of its elements, those of largest magnitude."""
    magnitudes = v.abs().flatten().sort(descending=True).values
    smallest = magnitudes[max(1, int(share * v.numel())) - 1]
    return torch.where(v.abs() >= smallest, v, 0.0)
