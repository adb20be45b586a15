"""A model seen as three flat vectors, the way the papers write it: parameters x, gradient g, buffers b."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from transports.base import Transport


class Replica:
    """One rank's copy of the model, its tensors being views of flat vectors that peers can read in place.

    `x` [n] holds the trainable parameters (a tied one once), `g` [n] their gradients, `b` [m] the floating-point
    buffers (BatchNorm statistics). `g_and_n` [n + 1] is `g` with one more element, for the number of samples.
    Frozen parameters and integer buffers are left alone. Raises ValueError if the model has nothing to train, or more
    than one floating dtype or device.
    """

    def __init__(self, model: nn.Module, transport: Transport) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        buffers = list({id(b): b for b in model.buffers() if b.is_floating_point()}.values())
        kinds = {(t.dtype, t.device) for t in (*self.parameters, *buffers)}
        if not self.parameters:
            raise ValueError("the model has no trainable parameter")
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ValueError(f"the model's parameters and buffers must share one dtype and device, but are {found}")
        dtype = self.parameters[0].dtype
        n = sum(p.numel() for p in self.parameters)
        self.x = transport.allocate(n, dtype)
        self.g_and_n = transport.allocate(n + 1, dtype)
        self.g = self.g_and_n[:n]
        self.b = transport.allocate(sum(b.numel() for b in buffers), dtype)
        self.gradients = list(_views(self.g, self.parameters))
        for tensor, view in (*zip(self.parameters, _views(self.x, self.parameters), strict=True),
                             *zip(buffers, _views(self.b, buffers), strict=True)):  # fmt: skip
            view.copy_(tensor.detach())
            tensor.data = view
        for parameter, view in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = view

    def move_to(self, x: torch.Tensor) -> None:
        """Have the parameters in another vector `x` [n] of the same dtype and device."""
        x.copy_(self.x)
        self.look_at(x)

    def look_at(self, x: torch.Tensor) -> None:
        """Have `x` [n] as the parameters, with the values that it has. They may be another rank's: to read only."""
        self.x = x
        for parameter, view in zip(self.parameters, _views(x, self.parameters), strict=True):
            parameter.data = view

    def zero_grad(self) -> None:
        """Forget the gradients. The next backward pass then need not add to zeros: it makes new ones."""
        for parameter in self.parameters:
            parameter.grad = None

    def collect(self, n_samples: int) -> torch.Tensor:
        """Return (g, n): the gradient that the last backward pass left, with the number of samples appended.

        Whatever is in the place of a `.grad` (after `zero_grad`, by a hook) is copied in and the view put back; a
        missing gradient counts as zero.
        """
        for parameter, view in zip(self.parameters, self.gradients, strict=True):
            if parameter.grad is not view:
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view
        self.g_and_n[-1] = n_samples
        return self.g_and_n


@torch.no_grad()
def copy_into(tensors: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
    """Copy the elements of a vector into `tensors`, one after the other. Raises RuntimeError if the lengths differ."""
    parts = vector.split([tensor.numel() for tensor in tensors]) if tensors else []
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _views(vector: torch.Tensor, tensors: list[nn.Parameter] | list[torch.Tensor]) -> Iterator[torch.Tensor]:
    start = 0
    for tensor in tensors:
        yield vector[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
