"""Factories of optimizers, and properties of an optimizer that a trial step reveals."""

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import nn

from gradwire.core.strategy.layout import Layout

OptimizerFactory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
Made = TypeVar("Made", bound=torch.optim.Optimizer)


@dataclass(frozen=True)
class ByTensor:
    """A factory of an optimizer of the model's tensors: views of x with their shapes, and their layout.

    `name`: its name in messages.
    """

    make: Callable[[Layout, list[Any]], torch.optim.Optimizer]
    name: str

    def __call__(self, parameters: list[torch.Tensor], layout: Layout | None = None) -> torch.optim.Optimizer:
        """Make it; without a layout, the parameters have numbers for names."""
        return self.make(layout or Layout.of((str(i), p) for i, p in enumerate(parameters)), parameters)


def by_name(make: Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer], name: str = "") -> ByTensor:
    """Return what makes an optimizer by `make`, which is called with what `model.named_parameters()` would give."""
    return ByTensor(
        lambda layout, parameters: make(list(zip(layout.names, parameters, strict=True))),
        name or getattr(make, "__name__", "yours"),
    )


class _Flat(torch.Tensor):
    """A parameter that refuses to tell its shape, except to torch itself."""

    _SHAPE = frozenset({"dim", "size", "ndim", "shape", "ndimension"})

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Raise TypeError where a function outside torch asks for the shape."""
        asked = getattr(func, "__self__", func) if func.__name__ == "__get__" else func
        if getattr(asked, "__name__", "") in cls._SHAPE:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith("torch."):
                raise TypeError("it asks a parameter for its shape")
        return super().__torch_function__(func, types, args, kwargs or {})


def is_flat(make: OptimizerFactory) -> bool:
    """Return whether the optimizer may be given all parameters as one vector, or a part of it: which is fastest.

    It may if it makes one group, asks no parameter for its shape, and updates each element by itself. Tried out.
    """
    try:
        return _is_flat(make)
    except TypeError:  # it has no hash
        return _is_flat.__wrapped__(make)


@lru_cache(maxsize=8)  # tried out once, however many ranks share a process
def _is_flat(make: OptimizerFactory) -> bool:
    if isinstance(make, ByTensor):
        return False
    try:
        made = make([torch.zeros(1).as_subclass(_Flat).requires_grad_()])
        return len(made.param_groups) == 1 and is_elementwise(make)
    except Exception:  # of any kind: by its own check of the shape. If it cannot be made at all, that is raised later.
        return False


def is_elementwise(make: OptimizerFactory) -> bool:
    """Return whether the two halves of a vector are updated as they are in the whole. Tried out."""
    values = torch.linspace(-1, 2, 8, dtype=torch.float64)
    whole = torch.nn.Parameter(values.clone())
    halves = [torch.nn.Parameter(half.clone()) for half in values.tensor_split(2)]
    optimizers = [make([parameter]) for parameter in (whole, *halves)]
    for step in range(3):
        g = torch.sin(values + step)
        for parameter, gradient in zip((whole, *halves), (g, *g.tensor_split(2)), strict=True):
            parameter.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    return torch.allclose(whole, torch.cat([*halves]), rtol=1e-12, atol=0)


def without_compiler(kind: type[Made]) -> type[Made]:
    """Return `kind` without what torch wraps around its methods for torch.compile: the same steps.

    The first call of any of these wrappers loads torch._dynamo and sympy, which takes as long as torch itself.
    """

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            loss: float | None = inspect.unwrap(kind.step)(self, closure)
            return loss

    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), plain | {"step": step})


def outer_sgd(parameters: Iterable[nn.Parameter], lr: float, momentum: float) -> torch.optim.SGD:
    """Return SGD with Nesterov momentum, the outer optimizer of models that are averaged."""
    return without_compiler(torch.optim.SGD)(parameters, lr=lr, momentum=momentum, nesterov=momentum > 0)
