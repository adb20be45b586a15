"""Updates of parts of x in the backward pass, before those of the others."""

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.updater import Updater


class PartUpdater(Updater):
    """An updater by which a part of x may take a step before `step`, which then updates the others."""

    @override
    def optimize(self, *parameters: torch.Tensor, **options: Any) -> None:
        super().optimize(*parameters, **options)
        self._taken: list[slice] = []  # the parts that have taken the next step

    @cached_property
    def has_parts(self) -> bool:
        """Whether parts of x may be updated before the others: by `step_part`."""
        return self.is_flat and not self.clip_norm and can_update_parts(self._make)

    def step_part(self, part: slice, g: torch.Tensor, n_samples: int) -> None:
        """Update one of the `parts` that `optimize` was given, before `step`, with the same arguments, the others."""
        self._give(g)
        self._update_only(g, n_samples, self._inside(part))
        self._taken.append(part)

    @override
    def _update(
        self, g: torch.Tensor | None, processed: float, numbers: Sequence[int], total: torch.Tensor | None = None
    ) -> None:
        taken, self._taken = {i for part in self._taken for i in self._inside(part)}, []
        self._update_only(g, processed, [i for i in numbers if i not in taken], total)

    def _update_only(
        self, g: torch.Tensor | None, processed: float, numbers: Sequence[int], total: torch.Tensor | None = None
    ) -> None:
        for i in {*self.own} - {*numbers}:
            self.parameters[i].grad = None
        super()._update(g, processed, numbers, total)

    def _inside(self, part: slice) -> list[int]:
        """Return the numbers of the parameters in a part of x, which the optimizer has all of."""
        return [i for i, end in enumerate(itertools.accumulate(self.sizes)) if part.start < end <= part.stop]


def can_update_parts(make: OptimizerFactory) -> bool:
    """Return whether a step of some of the parameters, then one of the others, is a step of all. Tried out."""
    values = torch.linspace(-1, 2, 8, dtype=torch.float64)
    together, apart = ([nn.Parameter(half.clone()) for half in values.tensor_split(2)] for _ in range(2))
    at_once, in_turn = make([*together]), make([*apart])
    for step in range(3):
        for parameter, other, g in zip(together, apart, torch.sin(values + step).tensor_split(2), strict=True):
            parameter.grad, other.grad = g.clone(), g.clone()
            in_turn.step()
            other.grad = None
        at_once.step()
    return all(map(torch.equal, together, apart))
