"""N models in one loop, and the matrix W of weights."""

import math

import torch

from strategies import Gossip
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [{}, {"topology": "exponential"}]


def plain_program(run: PlainRun, options: Gossip) -> Trajectories:
    """x <- W x - eta g(x), row k being worker k's."""
    N = len(run.workers)
    x, seen = torch.stack([run.x for _ in run.workers]), []
    for i in range(run.steps):
        identity = torch.eye(N, dtype=x.dtype)
        if options.topology == "ring":
            W = (identity + identity.roll(1, 1) + identity.roll(-1, 1)) / 3
        else:
            W = (identity + identity.roll(2 ** (i % math.ceil(math.log2(N))), 1)) / 2
        x = W @ x - run.lr * torch.stack([run.gradient(x[k], i, k) for k in run.workers])
        seen.append(x)
    return list(torch.stack(seen, dim=1))
