"""Lab 8, to be filled in: the optimizer's state, cut over the ranks. The text of the lab is in 8_sharding.ipynb.

python -m lessons.check sharding lessons/sharding.py

python train.py --strategy lessons.sharding:Mine --n_gpus 4 --optimizer adam --lr 0.01      # when it is right
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import Transport
from strategies import ShardedRing

Update = Callable[[torch.Tensor, torch.Tensor], None]


def step(transport: Transport, x: torch.Tensor, g: torch.Tensor, update: Update) -> None:
    """One step of training: x [P] <- optimizer(x, the mean of all g [P]), the same x on every rank, in place.

    `update(part, gradient)` is the optimizer's step on a slice of x, in place, with the gradient of these elements. It
    makes, at its first call, the state of the slice's elements, and keeps it. Each rank is to keep that of one part
    in N. g may be overwritten.
    """
    raise NotImplementedError(
        "step: what must this rank know before it may update its own part, and what must all know afterwards? The two "
        "halves of a ring carry just that"
    )


@dataclass(kw_only=True)
class Mine(ShardedRing):
    """Every rank updates its part of x, by the function above."""

    take_step = staticmethod(step)

    def setup(self) -> None:
        """No part of x has an optimizer yet."""
        self.part: tuple[int, int] | None = None

    def step(self, n_samples: int) -> None:
        """Take a step as if every rank had as many samples."""
        n = n_samples * self.transport.world_size

        def update(part: torch.Tensor, gradient: torch.Tensor) -> None:
            where = int(part.storage_offset()), part.numel()
            if self.part is None:
                self.updater.optimize(part)
                self.part = where
            if where != self.part:
                raise RunFailed("update was called for two parts of x on one rank; in training a rank has one")
            self.updater.step(gradient, n)

        self.take_step(self.transport, self.replica.x, self.replica.collect(), update)
        self.replica.zero_grad()
