"""Vectors on torch's meta device, which have a length and no elements, with short cuts for the operations of messages.

An operation on the meta device checks types and lengths in Python, for longer than all else takes that a message needs.
Where nothing is to be checked, these vectors return at once; whatever else is done with them, torch does. So a run
sends the same, at the same times.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


def _in_place(name: str) -> Any:
    """Return a method that writes a result with one other operand in place."""
    of_torch: Callable[..., torch.Tensor] = getattr(torch.Tensor, name)
    numbers = () if name == "copy_" else (int, float)

    def method(self: torch.Tensor, other: Any, *more: Any, **options: Any) -> torch.Tensor:
        if type(other) is Hollow:
            fits = other is self or (other.shape == self.shape and other.dtype == self.dtype)
        else:
            fits = type(other) in numbers
        return self if fits else of_torch(self, other, *more, **options)

    return method


class Hollow(torch.Tensor):
    """A vector [n] of a floating-point type: all of one length and type are one object, which `hollow` returns."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    add_, sub_, mul_, div_, copy_ = map(_in_place, ("add_", "sub_", "mul_", "div_", "copy_"))

    def zero_(self) -> torch.Tensor:
        """See torch."""
        return self

    def clone(self, **options: Any) -> torch.Tensor:
        """See torch."""
        return hollow(self.numel(), self.dtype)

    def detach(self) -> torch.Tensor:
        """See torch. What becomes a parameter has a gradient, and so is an object of its own."""
        return torch.Tensor._make_subclass(Hollow, self)

    def view(self, *shape: Any) -> torch.Tensor:
        """See torch."""
        return hollow(self.numel(), self.dtype) if shape == (self.shape,) else super().view(*shape)

    def tensor_split(self, *sections: Any, **options: Any) -> Any:
        """See torch."""
        if len(sections) != 1 or type(sections[0]) is not int or sections[0] < 1 or options:
            return super().tensor_split(*sections, **options)
        return _chunks(self.numel(), self.dtype, sections[0])

    def __getitem__(self, where: Any) -> torch.Tensor:
        """See torch."""
        if type(where) is slice and where.step is None:
            return hollow(len(range(*where.indices(self.numel()))), self.dtype)
        return super().__getitem__(where)


@cache
def hollow(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the vector [n] of this floating-point type."""
    return torch.Tensor._make_subclass(Hollow, torch.empty(n, dtype=dtype, device="meta"))


@cache
def _chunks(n: int, dtype: torch.dtype, sections: int) -> tuple[torch.Tensor, ...]:
    least, longer = divmod(n, sections)
    return (hollow(least + 1, dtype),) * longer + (hollow(least, dtype),) * (sections - longer)


def zeros(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a zeroed vector [n], on the meta device a hollow one."""
    if device.type == "meta" and dtype.is_floating_point:
        return hollow(n, dtype)
    return torch.zeros(n, dtype=dtype, device=device)
