"""How a rank computes a pass: on how many threads, and in which precision.

In virtual time also: which part of a pass belongs to each parameter.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.replica import trained

FLOP_OF_TWO_THREADS = 1e8
"""The operations of a forward pass below which one thread computes it, in some milliseconds.

A second thread would save less than half of them on idle cores, and cost ten times as much on a busy machine.
"""
AMP = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The names of `--amp`."""


def choose_threads(model: nn.Module, compute: Callable[[], object], times: float) -> None:
    """Compute on one thread if a pass, `times` as much work as `compute`, is too short for several threads."""
    if torch.get_num_threads() > 1 and _counted(model, compute).get_total_flops() * times < FLOP_OF_TWO_THREADS:
        torch.set_num_threads(1)


@torch.no_grad()
def _counted(model: nn.Module, compute: Callable[[], object]) -> FlopCounterMode:
    was_training = model.training
    with warnings.catch_warnings(action="ignore"), FlopCounterMode(display=False) as counter:
        model.eval()  # so that no statistics are changed
        compute()
    model.train(was_training)
    return counter


def shares_of(model: nn.Module, compute: Callable[[], object]) -> tuple[float, ...]:
    """Return the share of each trainable parameter in the operations of the forward pass by `compute`.

    A module's operations, as torch counts them, are split over its own parameters by their numbers of elements; what
    modules without parameters compute is left out. Where nothing is counted, all by their numbers of elements.
    """
    counts = {name: sum(of.values()) for name, of in _counted(model, compute).get_flop_counts().items()}
    weights = {id(p): 0.0 for p in trained(model)}
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if id(p) in weights]
        n = sum(p.numel() for p in own)
        for p in own:
            weights[id(p)] += counts.get(f"{type(model).__name__}.{name}", 0) * p.numel() / max(n, 1)
    if not any(weights.values()):
        weights = {id(p): float(p.numel()) for p in trained(model)}
    total = sum(weights.values())
    return tuple(weight / total for weight in weights.values())


class Precision:
    """Mixed precision: forward pass and loss in a half type, where autocast has one; x, g and the optimizer not.

    In float16 small gradients are zero and large ones infinite, so the loss is multiplied by a scale, which torch's
    GradScaler finds: it halves it when a gradient is not finite. Each rank has a scale of its own, and its gradient is
    divided by it before a strategy sees it. Where torch would skip the step, here the rank computes it once more with
    the new scale: then all ranks take all steps, whatever the strategy. `scaler.scale(loss)` is what the backward pass
    begins with, and a resumed run needs the state of `scaler`.
    """

    def __init__(self, amp: str, device: torch.device) -> None:
        self._dtype, self._device = AMP[amp], device
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute the block, a forward pass and its loss, in the half type."""
        return torch.autocast(self._device.type, self._dtype) if self._dtype else nullcontext()

    def unscale(self, parameters: list[nn.Parameter]) -> bool:
        """Divide the gradients by the scale; return whether they are finite.

        If not, they are forgotten, and the scale is smaller. Raises RunFailed if none is small enough.
        """
        if not self.scaler.is_enabled():
            return True
        tried = _Tried([p for p in parameters if p.grad is not None], {})
        self.scaler.unscale_(tried)
        self.scaler.step(tried)
        self.scaler.update()
        if not tried.is_finite:
            if self.scaler.get_scale() < 1e-3:
                raise RunFailed("the gradient is not finite in float16, however small its scale; take --amp bf16")
            for parameter in parameters:
                parameter.grad = None
        return tried.is_finite


class _Tried(torch.optim.Optimizer):
    """Stands for an optimizer in a scaler, which calls its step if the gradients are finite."""

    is_finite = False

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Note it."""
        self.is_finite = True
