"""Lab 12, to be filled in: DiLoCo's outer step, then fragments that arrive later. The text is in 12_seldom.ipynb.

python -m lessons.check seldom lessons/seldom.py

python train.py --strategy lessons.seldom:Mine --n_gpus 4      # when it is right: trains by it
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from records.errors import UsageError
from strategies import Cost, Traffic
from strategies.collectives import Rounds
from strategies.local_models.drifting import Drifting

OUTER_LR, MOMENTUM = 0.7, 0.9  # of the outer optimizer, SGD with Nesterov momentum


@dataclass(frozen=True, eq=False)
class Fragment:
    """A part of the model, as one rank has it: four vectors [n], which you change in place, and when it is sent.

    `x`: this rank's parameters; `x0`: what they were after the last exchange, the same on all ranks; `momentum`: of the
    outer optimizer, at first 0; `sum`: memory for what is summed. It has its turn at each t with (t - offset) mod H = 0.
    """

    tag: str
    x: torch.Tensor
    x0: torch.Tensor
    momentum: torch.Tensor
    sum: torch.Tensor
    offset: int
    H: int
    tau: int
    alpha: float

    @classmethod
    def cut(cls, vectors: Iterable[torch.Tensor], H: int, P: int, tau: int, alpha: float) -> "list[Fragment]":
        """Return P fragments of x, x0, momentum and sum."""
        parts = zip(*(vector.tensor_split(P) for vector in vectors), strict=True)
        return [cls(f"fragment {p}", *part, p * H // P, H, tau, alpha) for p, part in enumerate(parts)]


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
class Mine(Drifting):
    """Streaming DiLoCo by the function above; with 1 fragment, delay 0 and blend 0 it is DiLoCo."""

    local_steps: int = 8
    """H: steps between two turns of a fragment."""
    fragments: int = 4
    """P: parts of x."""
    delay: int = 1
    """tau: steps after which a sum is used, fewer than local_steps."""
    blend: float = 0.5
    """alpha: the share of its own x that a rank keeps."""
    stream = staticmethod(stream)

    def cost(self, kind: str | None = None) -> Cost:
        """A ring of each fragment every local_steps steps."""
        return Cost(worker=Traffic("2 (N - 1) fragments / local_steps", "2 (N - 1) P / N / local_steps"))

    def join(self, resumed: bool) -> None:
        """Cut x, which is x0 at first, into fragments."""
        super().join(resumed)
        if resumed:
            raise UsageError("--resume: a checkpoint of this lab lacks x0 and what was on its way; start anew")
        x = self.replica.x
        x0, momentum, total = (self.transport.allocate(x.numel(), x.dtype) for _ in range(3))
        vectors = x, x0.copy_(x), momentum, total
        self.cut = Fragment.cut(vectors, self.local_steps, self.fragments, self.delay, self.blend)
        self.sums = Rounds(self.transport)

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); then each fragment in turn, as if every rank had as many samples."""
        self.descent.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        for fragment in self.cut:
            self.stream(self.sums, fragment, self.descent.version)
        self.sums.advance()

    def finish(self) -> None:
        """Wait for what is on its way, which is used in its turn."""
        for fragment in self.cut:
            self.sums.advance(fragment.tag)
        super().finish()
