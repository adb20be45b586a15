"""Section 3.1 of Alistarh and others, 2017, with the same random numbers of torch's generator."""

import numpy as np
import torch

from gradwire.compression.qsgd import QSGD
from tests.compression.plain import PlainRun, Step

OPTIONS = [{}, {"levels": 1}, {"levels": 7, "bucket": 3}]


def plain_program(run: PlainRun, options: QSGD) -> list[Step]:
    """Of a bucket v, Q(v) = ||v|| xi: xi is a level beside v / ||v||, the one above with the odds that fit its mean."""
    seed = np.random.SeedSequence([run.seed, run.rank]).generate_state(1, np.uint64)[0]
    generator, s, received = torch.Generator().manual_seed(int(seed)), options.levels, []
    for gradients in run.steps:
        sent = []
        for g in gradients:
            draws = torch.rand(g.numel(), generator=generator, dtype=g.dtype)
            buckets = zip(g.flatten().split(options.bucket), draws.split(options.bucket), strict=True)
            sent.append(torch.cat([v.norm() * (s * v / v.norm() - u).ceil() / s for v, u in buckets]).view(g.shape))
        received.append(sent)
    return received
