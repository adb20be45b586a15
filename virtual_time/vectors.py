"""Vectors on torch's meta device, with a length and no elements, whose most frequent operations take no time.

Every operation on the meta device checks types and lengths in Python. Here those that are done for each message have
a short way where nothing is to be checked: with a vector of the same length and type, or with a number. All others are
torch's own, so what a run sends, and when, is the same.
"""

from functools import cache
from typing import Any

import torch


class Hollow(torch.Tensor):
    """A vector [n] without elements: all of one length and type are one object. See `hollow`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def _fits(self, other: Any) -> bool:
        """Whether a result with `other`, written here, needs no check: nothing is to be broadcast, or to be cast."""
        if type(other) is Hollow:
            return other is self or (other.shape == self.shape and other.dtype == self.dtype)
        return type(other) is int or type(other) is float

    def add_(self, other: Any, *, alpha: float = 1) -> torch.Tensor:
        """See torch."""
        return self if self._fits(other) else super().add_(other, alpha=alpha)

    def sub_(self, other: Any, *, alpha: float = 1) -> torch.Tensor:
        """See torch."""
        return self if self._fits(other) else super().sub_(other, alpha=alpha)

    def mul_(self, other: Any) -> torch.Tensor:
        """See torch."""
        return self if self._fits(other) else super().mul_(other)

    def div_(self, other: Any) -> torch.Tensor:
        """See torch."""
        return self if self._fits(other) else super().div_(other)

    def copy_(self, other: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """See torch."""
        return self if self._fits(other) else super().copy_(other, non_blocking)

    def zero_(self) -> torch.Tensor:
        """See torch."""
        return self

    def clone(self, **options: Any) -> torch.Tensor:
        """See torch."""
        return hollow(self.numel(), self.dtype)

    def detach(self) -> torch.Tensor:
        """See torch: what becomes a parameter, which has a gradient, is an object of its own."""
        return torch.Tensor._make_subclass(Hollow, self)

    def tensor_split(self, sections: int) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """See torch."""
        n, longer = divmod(self.numel(), sections)
        return (hollow(n + 1, self.dtype),) * longer + (hollow(n, self.dtype),) * (sections - longer)


@cache
def hollow(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the vector [n] of this floating-point type."""
    return torch.Tensor._make_subclass(Hollow, torch.zeros(n, dtype=dtype, device="meta"))


def zeros(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a zeroed vector [n], hollow on the meta device."""
    if device.type == "meta" and dtype.is_floating_point:
        return hollow(n, dtype)
    return torch.zeros(n, dtype=dtype, device=device)
