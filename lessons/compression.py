"""Lab 7, to be filled in: the largest elements of a gradient, and what is kept. The text is in 7_compression.ipynb.

python -m lessons.check compression lessons/compression.py

python train.py --strategy lessons.compression:Mine --n_gpus 4      # when it is right: trains by it
"""

from dataclasses import dataclass

import torch

from gradwire.compression.base import pack, unpack  # noqa: F401 - for exchange
from gradwire.core.transports.base import Transport
from strategies import Cost, Strategy, Traffic


def compress(g: torch.Tensor, residual: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is sent of the gradient g [P]: the indices [k], int32, and the values [k] of k elements.

    All elements are sent if P is less than k. `residual` [P], at first zeros, is what was not sent so far; it is
    changed in place, so that nothing is lost: residual before + g = what is sent + residual after. g is not changed.
    """
    raise NotImplementedError(
        "compress: which vector do you choose the k largest magnitudes from, so that what was not sent comes again? "
        "What must the residual hold afterwards, where an element is sent, and elsewhere?"
    )


def decompress(indices: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    """Return the vector [length] that a code stands for, in the dtype of its values."""
    raise NotImplementedError("decompress: the values at their indices, and what elsewhere?")


def exchange(transport: Transport, g: torch.Tensor, residual: torch.Tensor, k: int) -> torch.Tensor:
    """Return the mean [P] over all N ranks of what they send for their g [P], the same bits on every rank."""
    raise NotImplementedError(
        "exchange: send your code, and nothing that is longer, to every other rank; return the mean of all N codes, "
        "your own being one. Two codes may have elements in common"
    )


@dataclass(kw_only=True)
class Mine(Strategy):
    """Every rank sends the largest elements of its gradient, by the functions above, and all take the same step."""

    density: float = 0.01
    """The share of the elements that is sent."""
    feedback: bool = True
    """Keep what is not sent, and add it to the next gradient."""

    exchange = staticmethod(exchange)

    def cost(self, kind: str | None = None) -> Cost:
        """An index and a value of each element to every other rank."""
        return Cost(worker=Traffic("N - 1", "(N - 1) (4 + w) max(1, floor(n density))"))

    def setup(self) -> None:
        """residual <- 0."""
        self.residual = torch.zeros_like(self.replica.x)
        self.keep("residual", self.residual)

    def step(self, n_samples: int) -> None:
        """g <- the mean of what all send, as if every rank had as many samples; x <- optimizer(x, g)."""
        g = self.replica.collect()
        if not self.feedback:
            self.residual.zero_()
        mean = self.exchange(self.transport, g, self.residual, max(1, int(self.density * len(g))))
        self.updater.step(mean, n_samples * self.transport.world_size)
        self.replica.zero_grad()
