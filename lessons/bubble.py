"""Lab 14, to be filled in: a pipeline of stages, and the time in which ranks wait. The text is in 14_bubble.ipynb.

python -m lessons.check bubble lessons/bubble.py
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist  # noqa: F401 - for `step`

PASS_S = 1.0  # virtual seconds of a micro-batch on a rank, c: a third in its forward passes, the rest in backward ones


class Pass(NamedTuple):
    """One pass of a micro-batch through one stage of a rank: "F", forward, or "B", backward.

    A rank has v stages, its chunks 0 .. v - 1; chunk c of rank r is stage c p + r of the p v stages.
    """

    kind: str
    micro_batch: int
    chunk: int = 0


class Pipe:
    """The stages of one rank, among `p` ranks with `v` stages each.

    Stage k computes tanh(x W_k). The last one adds the loss of each micro-batch to `loss`, divided by m.
    """

    def __init__(
        self, rank: int, p: int, weights: Sequence[torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor,
        pass_s: float,
    ) -> None:  # fmt: skip
        self.rank, self.p, self.v = rank, p, len(weights)
        self.weights = [weight.clone().requires_grad_() for weight in weights]
        self.loss = inputs.new_zeros(())
        self.passes: list[tuple[Pass, float, float, torch.Tensor | None]] = []  # made: begin, end, and what was given
        self.most_kept = 0  # activations of one stage and micro-batch, at a time
        self._inputs, self._targets, self._pass_s = inputs, targets, pass_s
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def new(self) -> torch.Tensor:
        """Return a new tensor for the activations of a micro-batch, or for their gradient."""
        return torch.zeros_like(self._inputs[0])

    def forward(self, micro_batch: int, chunk: int, x: torch.Tensor | None) -> torch.Tensor:
        """Return what the next stage is to be given; keep the activations. `x` is None at the first stage."""
        given = None if x is None else x.detach().clone()
        x = self._inputs[micro_batch].clone() if x is None else x.detach()
        begun = time.perf_counter()
        y = torch.tanh(x.requires_grad_() @ self.weights[chunk])
        time.sleep(self._pass_s / 3 / self.v)
        self._kept[micro_batch, chunk] = x, y
        self.most_kept = max(self.most_kept, len(self._kept))
        self.passes.append((Pass("F", micro_batch, chunk), begun, time.perf_counter(), given))
        return y.detach()

    def backward(self, micro_batch: int, chunk: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return the gradient for the stage before; free the activations. `gradient` is None at the last stage."""
        begun = time.perf_counter()
        x, y = self._kept.pop((micro_batch, chunk))
        if gradient is None:
            loss = (y - self._targets[micro_batch]).square().mean() / len(self._inputs)
            loss.backward()
            self.loss += loss.detach()
        else:
            y.backward(gradient)
        time.sleep(self._pass_s * 2 / 3 / self.v)
        given = None if gradient is None else gradient.clone()
        self.passes.append((Pass("B", micro_batch, chunk), begun, time.perf_counter(), given))
        assert x.grad is not None
        return x.grad


def gpipe(rank: int, p: int, m: int) -> list[Pass]:
    """Return the passes of a rank of p, with one stage each and m micro-batches: all forward, then all backward."""
    raise NotImplementedError("gpipe: which passes does a rank make, and is the order another one for another rank?")


def one_f_one_b(rank: int, p: int, m: int) -> list[Pass]:
    """Return the passes of a rank: as few forward ones first as fill the pipeline, then one forward, one backward."""
    raise NotImplementedError(
        "one_f_one_b: how many micro-batches must have gone ahead of the one that the last stage works on, for this "
        "rank never to wait? And if there are fewer than that?"
    )


def interleaved(rank: int, p: int, m: int, v: int) -> list[Pass]:
    """Return the passes of a rank with v stages, one forward, one backward; p divides m."""
    raise NotImplementedError(
        "interleaved: micro-batches go in groups of p: all p through chunk 0, then through chunk 1, .... Write down "
        "this order of the forward passes, and that of the backward ones, whose chunks come from the last. Then: how "
        "many forward ones first?"
    )


def step(order: Sequence[Pass], pipe: Pipe) -> None:
    """Make the passes of this rank in their order, and send what other ranks need for theirs."""
    raise NotImplementedError(
        "step: which stage is the pass for, who has the stage before, who the one behind? What says, at the receiver, "
        "for which pass a message is? And which rank waits for which if sends wait?"
    )
