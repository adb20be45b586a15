"""Stragglers on demand: a rank that computes as slowly as it is told, to see the effect on a strategy."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transports.base import Transport


class Straggler:
    """Stretches what one rank computes to `factor` times its time, and beyond that at random.

    Each pass, forward or backward, takes factor * exp(jitter * |z|) times as long as it would, z being standard normal
    from `seed`. The time is made longer by sleeping, so the cores are free for the other ranks.
    """

    def __init__(self, factor: float, jitter: float, seed: int, transport: Transport) -> None:
        self.factor = factor
        self.jitter = jitter
        self.transport = transport
        self._random = torch.Generator().manual_seed(seed)

    @contextmanager
    def stretched(self) -> Iterator[None]:
        """Make the block, one pass, last as long as on a slow rank."""
        if self.factor == 1 and self.jitter == 0:
            yield
            return
        t0 = self._computed()
        yield
        z = torch.randn((), generator=self._random).item()
        self.transport.sleep((self.factor * math.exp(self.jitter * abs(z)) - 1) * (self._computed() - t0))

    def _computed(self) -> float:
        # On a CPU the thread's own time: DDP waits for others inside its backward pass, and cores may be shared.
        if self.transport.device.type == "cpu":
            return self.transport.cpu_seconds()
        torch.cuda.synchronize(self.transport.device)
        return self.transport.now()
