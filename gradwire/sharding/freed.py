"""Parameters whose memory is freed, and given back."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gradwire.core.records.errors import RunFailed


class Freed(nn.Parameter):
    """A parameter whose memory is freed: its elements are NaN, and torch functions that read them raise RunFailed.

    Functions that only ask for the shape, or set the data, do not.
    """

    freed_name = ""
    kind: type[nn.Parameter] = nn.Parameter  # its class while it has memory
    _MAY = frozenset({"__get__", "__set__", "numel", "size", "dim", "stride", "is_floating_point", "untyped_storage"})

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See torch."""
        name = func.__name__
        if name not in cls._MAY and not name.endswith("_like"):
            freed = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Freed))
            raise RunFailed(
                f"{name}() reads {freed.freed_name} outside the passes of its block, where it is freed; take "
                "strategy.model(), or give --block_modules that are used as a whole"
            )
        return super().__torch_function__(func, types, args, kwargs or {})


def unbind(parameter: nn.Parameter, name: str) -> None:
    """Free the memory of the parameter `name`, unless something else refers to it."""
    if not isinstance(parameter, Freed):
        kind, parameter.data = type(parameter), parameter.data.new_full((), float("nan")).expand(parameter.shape)
        parameter.__class__ = Freed
        parameter.freed_name, parameter.kind = name, kind  # type: ignore[attr-defined]


def bind(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """Point a parameter, freed or not, at `data` of its shape."""
    parameter.data = data
    if isinstance(parameter, Freed):
        parameter.__class__ = parameter.kind  # type: ignore[assignment]
