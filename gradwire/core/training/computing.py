"""How a rank computes a pass: on how many threads, and in which precision."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gradwire.core.records.errors import RunFailed
from gradwire.core.training.options import AMP

FLOP_OF_TWO_THREADS = 1e8
"""The operations of a forward pass below which one thread computes it, in some milliseconds.

A second thread would save less than half of them on idle cores, and cost ten times as much on a busy machine.
"""


def choose_threads(model: nn.Module, compute: Callable[[], object], times: float) -> None:
    """Compute on one thread if a pass, `times` as much work as `compute`, is too short for several threads."""
    if torch.get_num_threads() > 1 and count_flops(model, compute).get_total_flops() * times < FLOP_OF_TWO_THREADS:
        torch.set_num_threads(1)


@torch.no_grad()
def count_flops(model: nn.Module, compute: Callable[[], object]) -> FlopCounterMode:
    """Count the operations of the forward pass by `compute`."""
    was_training = model.training
    with warnings.catch_warnings(action="ignore"), FlopCounterMode(display=False) as counter:
        model.eval()  # so that no statistics are changed
        compute()
    model.train(was_training)
    return counter


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
