"""Lab 13, to be filled in: machines that die, and machines that are late. The text of the lab is in 13_failures.ipynb.

python -m lessons.check failures lessons/failures.py

python train.py --strategy lessons.failures:Mine --n_gpus 5      # when it is right: trains by its collect
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradwire.core.strategy.traits import END
from gradwire.core.transports.base import ANY, Transport  # noqa: F401 - ANY is for your `collect`
from strategies import BackupWorkers

Update = Callable[[torch.Tensor], None]


class Training:
    """SGD with momentum on |x - sample|^2 / 2, with dropout: samples [n, P] in an order drawn anew for each epoch."""

    def __init__(self, x: torch.Tensor, samples: torch.Tensor, seed: int) -> None:
        self.x, self.velocity, self.samples = x.clone(), torch.zeros_like(x), samples
        self.order, self.position = torch.arange(len(samples)), len(samples)  # as if an epoch had ended
        self.random = torch.Generator().manual_seed(seed).get_state()

    def step(self) -> None:
        """Take the next sample, and one step."""
        generator = torch.Generator().set_state(self.random)
        if self.position == len(self.order):
            self.order, self.position = torch.randperm(len(self.order), generator=generator), 0
        kept = torch.rand(self.x.shape, generator=generator) < 0.9
        self.random = generator.get_state()
        self.velocity.mul_(0.9).add_((self.x - self.samples[self.order[self.position]]) * kept)
        self.x.sub_(0.1 * self.velocity)
        self.position += 1


def save(training: Training) -> dict[str, Any]:
    """Return the attributes, by name, that a new Training must be given to continue as if this one had not died.

    The new one has the same samples, first x, and seed. While this is written to a file, `training` goes on.
    """
    raise NotImplementedError("save: which attributes does step() change, and which of them does it change in place?")


def interval(save_s: float, life_s: float, N: int) -> float:
    """Return how many seconds to train between two saves, so that the least time is lost.

    A save takes `save_s` seconds, in which nobody trains. Each of the N machines dies once in `life_s` seconds on
    average, at any time; then all begin again at the last save.
    """
    raise NotImplementedError(
        "interval: what is lost a second by saves, and what by deaths? Where is their sum smallest?"
    )


def collect(transport: Transport, x: torch.Tensor, update: Update, t: int, b: int) -> None:
    """Rank 0: make steps t, t + 1, ..., each by the mean of the first W - b gradients for it, of W workers.

    A worker sends a "gradient", computed on the "parameters" that it was sent last, at first the x of step t, and waits
    for the next: a copy of x, with the number of its step as n. Who is in time gets them when `update(g)` has made the
    step, in place. Who is late gets them at once, and the gradient is dropped. When all have said "goodbye", it ends.
    """
    raise NotImplementedError(
        "collect: take what comes from ANY; for which step is it, and so what must you know of each worker? Divide by "
        "what? Whom do you owe an answer?"
    )


@dataclass(kw_only=True)
class Mine(BackupWorkers):
    """Rank 0 collects by the function above, all others work, and none of them may die."""

    traits = replace(BackupWorkers.traits, deaths=END)
    collect_all = staticmethod(collect)

    def serve(self) -> None:
        """Make the steps of an epoch, as if every gradient were of one sample."""
        W, t = len(self.transport.peers), self.updater.version
        self.collect_all(self.transport, self.replica.x, lambda g: self.updater.step(g, W), t, self.n_backup)
