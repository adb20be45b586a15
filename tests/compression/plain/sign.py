"""Algorithm 1 of Karimireddy and others, 2019: signs, and the error added to the next gradient."""

import torch

from gradwire.compression.sign import Sign
from tests.compression.plain import PlainRun, Step

OPTIONS = [{}, {"error_decay": 0.5}]


def plain_program(run: PlainRun, options: Sign) -> list[Step]:
    """p = g + beta e; send (||p||_1 / d) sign(p); e = p - what is sent."""
    errors, received = [torch.zeros_like(g) for g in run.steps[0]], []
    for gradients in run.steps:
        p = [g + options.error_decay * e for g, e in zip(gradients, errors, strict=True)]
        sent = [v.abs().sum() / v.numel() * v.sign() for v in p]
        errors = [v - q for v, q in zip(p, sent, strict=True)]
        received.append(sent)
    return received
