"""Lost updates, of an x that several ranks write without a lock: the written updates, less the movement of x.

Every rank sums the increments d that it writes in an epoch in float64, and

    lost_updates = sum over elements |sum of d - net movement of x| / sum over elements of the sum of |d|

is 0 but for rounding where nothing is lost; one rank alone shows that floor. It says the least that may have been lost,
for losses of opposite sign in one element cancel. Missing in an epoch in which a rank has died.
"""

import torch

from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import Transport


class LostUpdates:
    """The updates that a rank writes into `x` [n]. Measuring takes time: an update is computed apart, then added.

    `written` [n + 1] is the sum of its increments and, at the end, the sum of their absolute values. `start` [n] is on
    rank 0 the x with which the epoch began.
    """

    def __init__(self, x: torch.Tensor, transport: Transport, updater: Updater) -> None:
        self.x, self.apart = x, torch.empty_like(x)
        self.written = transport.allocate(x.numel() + 1, torch.float64)
        self.start = torch.zeros(0)
        self._descent, self._meters = updater, transport.recorder.meters
        updater.optimize(self.apart)

    def step(self, g: torch.Tensor, n_samples: int) -> None:
        """x <- x + d, with d = optimizer(x, g) - x."""
        before = self.apart.copy_(self.x).clone()
        self._descent.step(g, n_samples)
        self.write(self.apart - before)

    def write(self, increment: torch.Tensor) -> None:
        """x <- x + `increment` [n]."""
        self.x.add_(increment)
        self.note(increment)

    def note(self, increment: torch.Tensor) -> None:
        """Sum this rank's updates: each element, and their absolute values."""
        self.written[:-1].add_(increment)
        self.written[-1].add_(increment.abs().sum(dtype=torch.float64))

    def measure(self, x: torch.Tensor, all_lived: bool) -> None:
        """Set the meter, with `written` of all ranks, and begin the next epoch at `x` [n]."""
        lost = (self.written[:-1] - (x - self.start)).abs().sum()
        self.start = x
        self._meters.pop("lost_updates", None)
        if all_lived:
            self._meters["lost_updates"] = float(lost / self.written[-1]) if self.written[-1] else 0.0
