"""Mixed precision: the forward pass and the loss in a half type, where autocast has one; x, g and the optimizer not."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from records.errors import RunFailed

AMP = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The names of `--amp`."""


class Precision:
    """What a rank computes its passes in.

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

    def unscale(self, parameters: list[torch.nn.Parameter]) -> bool:
        """Divide the gradients by the scale; return whether they are finite.

        If not, they are forgotten, and the scale is smaller. Raises RunFailed if none is small enough.
        """
        if not self.scaler.is_enabled():
            return True
        tried = _Tried([p for p in parameters if p.grad is not None])
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
    """What a scaler takes for an optimizer, and lets step where the gradients are finite."""

    is_finite = False

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Note it."""
        self.is_finite = True
