"""The tensors of a flat vector."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch


@dataclass(frozen=True)
class Layout:
    """The tensors that lie one after the other in a vector [n]: their names and shapes.

    `tables` are the names of the embeddings' weights; a gradient touches only some of their rows.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    tables: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, torch.Tensor]]) -> "Layout":
        """Return the layout of these tensors, by name."""
        pairs = list(tensors)
        return cls(tuple(name for name, _ in pairs), tuple(tuple(tensor.shape) for _, tensor in pairs))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where each tensor lies in the vector."""
        ends = accumulate(self.sizes)
        return tuple(slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True))

    def views(self, vector: torch.Tensor, which: Sequence[int] | None = None) -> list[torch.Tensor]:
        """Return the tensors, or those at `which` places, that lie in a vector one after the other."""
        shapes = self.shapes if which is None else [self.shapes[i] for i in which]
        parts = vector.split([math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    @property
    def n(self) -> int:
        """The elements of the vector."""
        return sum(self.sizes)

    @property
    def whole(self) -> "Layout":
        """The same vector as one tensor."""
        return Layout(("the vector",), ((self.n,),))

    def name_at(self, index: int) -> str:
        """Return the name of the tensor in which an element of the vector lies."""
        return next(name for name, where in zip(self.names, self.slices, strict=True) if where.stop > index)
