"""Stragglers on demand: a rank that computes as slowly as it is told, to see what a strategy makes of it."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from records.events import clock


class Straggler:
    """Stretches what one rank computes to `factor` times its time, and beyond that at random.

    Each pass, forward or backward, takes factor * exp(jitter * |z|) times as long as it would, z being standard normal
    from `seed`. The time is made longer by sleeping, so the cores are free for the other ranks.
    """

    def __init__(self, factor: float, jitter: float, seed: int, device: torch.device) -> None:
        self.factor = factor
        self.jitter = jitter
        self.device = device
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
        time.sleep((self.factor * math.exp(self.jitter * abs(z)) - 1) * (self._computed() - t0))

    def _computed(self) -> float:
        # On a CPU the thread's own time: DDP waits for others inside its backward pass, and cores may be shared.
        if self.device.type == "cpu":
            return time.thread_time()
        torch.cuda.synchronize(self.device)
        return clock()
