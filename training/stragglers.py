"""Stragglers on demand: a rank that computes as slowly as an option says, to see the effect on a strategy."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transports.base import Transport


class Stretch:
    """How many times its time each pass of one rank takes, forward or backward: factor * exp(jitter * |z|).

    z is standard normal, from `seed`.
    """

    def __init__(self, factor: float, jitter: float, seed: int) -> None:
        self.factor = factor
        self.jitter = jitter
        self._random = torch.Generator().manual_seed(seed)

    def draw(self) -> float:
        """Return the factor of the next pass."""
        if self.jitter == 0:
            return self.factor
        z = torch.randn((), generator=self._random).item()
        return self.factor * math.exp(self.jitter * abs(z))


class Straggler:
    """Stretches what one rank computes: see `Stretch`.

    The time is made longer by sleeping, so the cores are free for the other ranks.
    """

    def __init__(self, factor: float, jitter: float, seed: int, transport: Transport) -> None:
        self._stretch = Stretch(factor, jitter, seed)
        self._times = 1.0  # of this pass
        self._since = 0.0  # what was computed when it began, or went on
        self.transport = transport

    @property
    def is_slow(self) -> bool:
        """Whether there is anything to stretch."""
        return self._stretch.factor != 1 or self._stretch.jitter != 0

    @contextmanager
    def stretched(self) -> Iterator[None]:
        """Make the block, one pass, last as long as on a slow rank."""
        if not self.is_slow:
            yield
            return
        self._times, self._since = self._stretch.draw(), self._computed()
        yield
        self._catch_up()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Within a pass: sleep for what is missing so far, and do not stretch the block."""
        self._catch_up()
        yield
        self._since = self._computed()

    def _catch_up(self) -> None:
        self.transport.sleep((self._times - 1) * (self._computed() - self._since))

    def _computed(self) -> float:
        # On a CPU the thread's own time: DDP waits for others inside its backward pass, and cores may be shared.
        if self.transport.device.type == "cpu":
            return self.transport.cpu_seconds()
        torch.cuda.synchronize(self.transport.device)
        return self.transport.now()
