"""Lab 13, to be filled in: machines that die, and machines that are late. The text of the lab is in 13_failures.ipynb.

python -m lessons.check failures lessons/failures.py

python train.py --strategy lessons.failures:Mine --n_gpus 5      # when it is right: trains by its collect
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lessons import param_server
from transports.base import ANY, Transport  # noqa: F401 - ANY is for your `collect`

SERVER = 0


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
    raise NotImplementedError("interval: how much is lost a second by saving, how much by dying, and where is the sum "
                              "smallest?")  # fmt: skip


def collect(
    transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None], steps: int, b: int
) -> None:
    """Rank 0: make `steps` steps, each with the mean of the first W - b gradients for it, of W workers.

    A worker sends a "gradient" whose n is the number of the step, from 0 on, that it is for, and waits for
    "parameters": a copy of x, with the number of its step as n. Who was in time gets them when the step has been made,
    by `update(g)`, in place. Who comes later gets them at once, for the step that is being made, and the gradient is
    dropped. The number `steps` ends a worker; all get it.
    """
    raise NotImplementedError(
        "collect: take what comes from ANY; for which step is it? Divide by what, and whom do you owe an answer, also "
        "after the last step?"
    )


@dataclass(kw_only=True)
class Mine(param_server.Mine):
    """Rank 0 collects by the function above, all others work."""

    b: int = 1
    """How many gradients of a step are not waited for."""
    collect_all = staticmethod(collect)

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Rank 1: say how many steps there are. Take those that the server says."""
        if self.transport.rank == 1:
            self.transport.isend(None, SERVER, "steps", n=stop - start)
        self.t = 0
        while self.t < stop - start:
            yield start + self.t

    def step(self, n_samples: int) -> None:
        """Send g; take x, and the number of its step."""
        sent = self.transport.isend(self.replica.collect(), SERVER, "gradient", n=self.t)
        answer = self.transport.recv(SERVER, "parameters")
        self.t = answer.n
        answer.copy_to(self.replica.x)
        sent.wait()
        self.replica.zero_grad()

    def serve(self) -> None:
        """Make the steps of an epoch."""
        W, steps = self.transport.world_size - 1, self.transport.recv(1, "steps").n
        self.collect_all(self.transport, self.replica.x, lambda g: self.descent.step(g, W), steps, self.b)

    def finish(self) -> None:
        """All have the same x: nothing is left to do."""
