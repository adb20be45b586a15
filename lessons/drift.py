"""How far ranks are from one process, step by step: softmax regression on the digits, in virtual time.

The ranks take the parts of a plan, average their gradients by a student's function, and make the same step. One process
takes the same batches by the student's oracle. The comparison is of x after every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gradwire.core.transports.base import Transport
from gradwire.core.workloads.datasets import load
from gradwire.options import Options
from lessons.judge import launch
from lessons.report import Report, Shown, new_picture
from lessons.training import NOT_TRAINED

LR = 0.1
EPOCHS = 5
TOLERANCE = 1e-4
_N_CLASSES = 10
_LEAST = 1e-18  # what a distance of 0 is drawn as
Plan = Sequence[Sequence[Sequence[int]]]
OneProcess = Callable[[Plan, Callable[[Sequence[int]], torch.Tensor], Callable[[torch.Tensor], None]], None]
Average = Callable[[Transport, torch.Tensor, int], int]
Verify = Callable[[Sequence[torch.Tensor], torch.Tensor, float], bool]


@dataclass(frozen=True)
class Drift:
    """What became of one way to average: by step, how far the replicas were from the oracle, and what verify said."""

    distances: list[float]  # the largest difference of an element, as a part of the oracle's largest element
    verified: list[bool]
    accuracy: float

    def __str__(self) -> str:
        wrong = next((step for step, right in enumerate(self.verified, 1) if not right), None)
        verdict = f"not verified, from step {wrong} on" if wrong else f"verified, all {len(self.verified)} steps"
        return f"{100 * self.accuracy:.1f} % of the held-out pictures; {verdict}"


class Softmax:
    """Softmax regression on the digits; x holds the weights [64, 10] and then the biases [10]."""

    def __init__(self, dtype: torch.dtype) -> None:
        data = load(Options())
        pixels, self.labels = data.fetch(torch.arange(data.n_train), dtype=dtype)
        held_out, self.held_out_labels = data.fetch(torch.arange(data.n_test), "test", dtype=dtype)
        self.pixels, self.held_out = pixels.flatten(1), held_out.flatten(1)
        self.x = torch.zeros(self.pixels.shape[1] * _N_CLASSES + _N_CLASSES, dtype=dtype)
        self.xs: list[torch.Tensor] = []  # after each step

    def gradient(self, samples: Sequence[int]) -> torch.Tensor:
        """Return the mean gradient over these training samples: a sum, divided by their number, 0 / 0 if none."""
        chosen = torch.tensor(list(samples), dtype=torch.int64)
        x = self.x.clone().requires_grad_()
        loss = F.cross_entropy(self._logits(x, self.pixels[chosen]), self.labels[chosen], reduction="sum")
        return torch.autograd.grad(loss, x)[0] / torch.tensor(len(samples))

    def update(self, g: torch.Tensor) -> None:
        """Make one step: x <- x - lr g."""
        self.x = self.x - LR * g
        self.xs.append(self.x)

    def accuracy(self) -> float:
        """Return the part of the held-out digits that x tells right."""
        found = self._logits(self.x, self.held_out).argmax(1)
        return float((found == self.held_out_labels).double().mean())

    def _logits(self, x: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        return pixels @ x[:-_N_CLASSES].view(-1, _N_CLASSES) + x[-_N_CLASSES:]


def measure(plan: Plan, one_process: OneProcess, average: Average, verify: Verify, dtype: torch.dtype) -> Drift:
    """Train by ranks and by one process on a plan, several epochs long."""
    whole = [*plan] * EPOCHS
    alone = Softmax(dtype)
    one_process(whole, alone.gradient, alone.update)

    def be(transport: Transport) -> Softmax:
        mine = Softmax(dtype)
        g = transport.allocate(mine.x.numel(), dtype)
        for parts in whole:
            part = parts[transport.rank]
            average(transport, g.copy_(mine.gradient(part)), len(part))
            mine.update(g)
        return mine

    ranks = launch(be, len(plan[0]))
    tolerance = TOLERANCE if dtype == torch.float32 else TOLERANCE**2
    drift = Drift([], [], ranks[0].accuracy())
    for right, *xs in zip(alone.xs, *(rank.xs for rank in ranks), strict=True):
        drift.distances.append(max(float((x - right).abs().max()) for x in xs) / float(right.abs().max()))
        drift.verified.append(verify(xs, right, tolerance))
    return drift


def compare(
    report: Report, plan: Plan, one_process: OneProcess, verify: Verify, averages: dict[str, Average]
) -> Shown | str:
    """Return what became of each way to average, and a picture of the distances; the first way also in float64."""
    if not report.right:
        return NOT_TRAINED
    found = {name: measure(plan, one_process, average, verify, torch.float32) for name, average in averages.items()}
    first, average = next(iter(averages.items()))
    found[f"{first}, float64"] = measure(plan, one_process, average, verify, torch.float64)
    picture, axes = new_picture(xlabel="steps; a grey line: the last batch of an epoch",
                                ylabel="distance from one process\n(part of the largest element)")  # fmt: skip
    for epoch in range(1, EPOCHS + 1):
        axes.axvline(epoch * len(plan), color="#dddddd", zorder=0)
    for name, drift in found.items():
        axes.semilogy(range(1, len(drift.distances) + 1), [max(d, _LEAST) for d in drift.distances], label=name)
    picture.legend(frameon=False, loc="outside right upper")
    text = "\n".join(f"{name:{max(map(len, found))}}  {drift}" for name, drift in found.items())
    return Shown(text, picture, "How far each was from one process, by step, on a logarithmic axis.")
