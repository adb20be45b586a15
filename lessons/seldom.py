"""Lab 12, to be filled in: DiLoCo's outer step, then fragments that arrive later. The text is in 12_seldom.ipynb.

python -m lessons.check seldom lessons/seldom.py

python train.py --strategy lessons.seldom:Mine --n_gpus 4      # when it is right: trains by it
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.core.records.errors import UsageError
from strategies import StreamingDiLoCo
from strategies.collectives import Rounds
from strategies.local_models import fragments

OUTER_LR, MOMENTUM = 0.7, 0.9  # of the outer optimizer, SGD with Nesterov momentum


@dataclass(eq=False)
class Fragment:
    """A part of the model, as one rank has it: four vectors [n], which you change in place, and when it is sent.

    `x`: this rank's parameters; `x0`: what they were after the last exchange, the same on all ranks; `momentum`: of the
    outer optimizer, at first 0; `sum`: memory for what is summed. It has its turn when (t - offset) mod H = 0.
    """

    tag: str
    offset: int
    H: int
    tau: int
    alpha: float
    x: torch.Tensor
    x0: torch.Tensor
    momentum: torch.Tensor
    sum: torch.Tensor

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, name, value) is not value:  # unlike `fragment.x -= ...`, which works in place
            raise AttributeError(f"fragment.{name} = ... makes another; change it in place: fragment.{name}.copy_(...)")
        super().__setattr__(name, value)


def outer_step(sums: Rounds, fragment: Fragment) -> None:
    """After H local steps: x0 takes one step of SGD with Nesterov momentum, and x goes on from there.

    `sums.begin(vector, 1, fragment.tag)` begins to replace a vector by its sum over all ranks, which takes a while.
    `sums.end(fragment.tag)` waits until it is done, and returns the sum of the 1.
    """
    raise NotImplementedError(
        "outer-step: which difference is the outer gradient, if a step against it is to lead to the mean of all x? It "
        "is x0 that takes the step, for there all ranks are alike"
    )


def stream(sums: Rounds, fragment: Fragment, t: int) -> None:
    """After local step t = 1, 2, ...: if the fragment has its turn, send it; use what it sent tau steps ago.

    That is, x0 takes an outer step, and x becomes alpha x + (1 - alpha) x0.
    """
    raise NotImplementedError(
        "stream: what is sent when the fragment has its turn? When is that used, and at which t was nothing sent tau "
        "steps ago? x has moved on since then: which x is blended with which x0?"
    )


@dataclass(kw_only=True)
class Mine(StreamingDiLoCo):
    """Streaming DiLoCo by the function above; with 1 fragment, delay 0 and blend 0 it is DiLoCo."""

    stream = staticmethod(stream)
    outer_lr: ClassVar[float] = OUTER_LR  # type: ignore[misc]  # no options: the function has them
    outer_momentum: ClassVar[float] = MOMENTUM  # type: ignore[misc]
    eager: ClassVar[bool] = False  # type: ignore[misc]

    def join(self, resumed: bool) -> None:
        """Show the function the fragments."""
        if resumed:
            raise UsageError("--resume: what is on its way is not in this lab's checkpoints; start anew")
        super().join(resumed)
        momentum, when = torch.zeros_like(self.x0), (self.local_steps, self.tau, self.alpha)
        self.mine = {
            cut: Fragment(cut.tag, cut.offset, *when, cut.x, cut.x0.data, momentum[cut.part], cut.sum)
            for cut in self.cut
        }

    def end_step(self, fragment: fragments.Fragment, t: int, n: int) -> None:
        """Send the fragment, and use its sum, as if every rank had as many samples."""
        self.stream(self.rounds, self.mine[fragment], t)

    def use(self, fragment: fragments.Fragment) -> None:
        """`stream` has done it."""

    def wait_for(self, fragment: fragments.Fragment) -> int:
        """Wait for the sum of a fragment that is on its way, which `stream` is to end."""
        self.rounds.advance(fragment.tag)
        return 0
