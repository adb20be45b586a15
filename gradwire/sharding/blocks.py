"""The blocks of a model, which sharded strategies gather and reduce one by one, and parameters that are freed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gradwire.compression import Layout
from gradwire.core.records.errors import RunFailed, UsageError


@dataclass(eq=False)
class Block:
    """Parameters that lie one after the other in x and are used in the passes of `module`."""

    name: str
    module: nn.Module
    tensors: range  # the numbers of its parameters
    part: slice  # of x
    chunks: Sequence[slice] = ()  # of x, one for each rank: rank r owns number (r + 1) mod N
    place: slice = field(default_factory=lambda: slice(0))  # of this rank's chunk among all that it owns
    missing: set[int] = field(default_factory=set)  # the parameters whose gradients are not complete in this pass
    vector: torch.Tensor | None = None  # [n], while it is gathered

    @property
    def n(self) -> int:
        """The number of its elements."""
        return self.part.stop - self.part.start

    def cut(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the chunks of a vector [n] of this block."""
        return [vector[chunk.start - self.part.start : chunk.stop - self.part.start] for chunk in self.chunks]


def blocks_of(model: nn.Module, layout: Layout, names: str = "") -> list[Block]:
    """Return the blocks of a model, those first that are its rest: parameters in none of the others, or in several.

    `names`: of the modules that are blocks, with commas; "": the children of the longest ModuleList or Sequential.
    Raises UsageError.
    """
    modules = dict(model.named_modules())
    chosen = names.split(",") if names else _children_of_the_longest_list(modules)
    homes: dict[int, set[str]] = {}  # of each parameter: in which blocks it is
    for name, module in modules.items():
        inside = [one for one in chosen if f"{name}.".startswith(f"{one}.")]
        if len(inside) > 1 or not set(chosen) <= set(modules):
            wrong = "one lies in another" if len(inside) > 1 else "the model has no such module"
            raise UsageError(
                f"--block_modules {names}: {wrong}; name modules of it, such as {', '.join(modules)[2:200]}"
            )
        for p in module.parameters(recurse=False):
            homes.setdefault(id(p), set()).update(inside or [""])
    of = [min(home) if len(home := homes[id(p)]) == 1 else "" for p in model.parameters() if p.requires_grad]
    blocks: list[Block] = []
    for name, run in groupby(range(len(of)), key=of.__getitem__):
        first, *_, last = [*run] * 2
        part = slice(layout.slices[first].start, layout.slices[last].stop)
        again = sum(block.module is modules[name] for block in blocks)  # in several runs, each of which is a block
        label = (name or "the rest") + (f", {1 + again}" if again else "")
        blocks.append(Block(label, modules[name], range(first, last + 1), part))
    return sorted(blocks, key=lambda block: block.module is not model)


def _children_of_the_longest_list(modules: Mapping[str, nn.Module]) -> list[str]:
    lists = {name: m for name, m in modules.items() if isinstance(m, nn.ModuleList | nn.Sequential)}
    if not lists:
        with_parameters = [m for m in modules.values() if next(m.parameters(recurse=False), None) is not None]
        if len(with_parameters) > 1:
            raise UsageError(
                "--block_modules: the model has no ModuleList or Sequential whose children are its blocks; name them, "
                f"such as --block_modules {list(modules)[1]}"
            )
        return []
    longest = max(lists, key=lambda name: len(lists[name]))
    return [name for name in modules if name and name.rpartition(".")[0] == longest]


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
            freed = next(one for one in tree_leaves((args, kwargs)) if isinstance(one, Freed))
            raise RunFailed(
                f"{name}() reads {freed.freed_name} outside the passes of its block, where it is freed; take "
                "strategy.model(), or give --block_modules that are used as a whole"
            )
        return super().__torch_function__(func, types, args, kwargs or {})


def free(parameter: nn.Parameter, name: str) -> None:
    """Free the memory of the parameter `name`, unless something else refers to it."""
    if not isinstance(parameter, Freed):
        kind, parameter.data = type(parameter), parameter.data.new_full((), float("nan")).expand(parameter.shape)
        parameter.__class__ = Freed
        parameter.freed_name, parameter.kind = name, kind  # type: ignore[attr-defined]


def give(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """Point a parameter, freed or not, at `data` of its shape."""
    parameter.data = data
    if isinstance(parameter, Freed):
        parameter.__class__ = parameter.kind  # type: ignore[assignment]
