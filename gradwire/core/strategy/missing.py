"""Tensors without a gradient, which torch's optimizers leave as they are: in a vector of gradients they are -0.

No gradient of a backward pass is -0 there, and a sum of -0 is -0. So a tensor that is -0 everywhere in the sum over
ranks had a gradient on none of them, and no message more is needed to know it.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import nn

MISSING = "missing gradients"  # the tag of a message with the numbers of such tensors, which a code does not carry


class Missing:
    """Which of the `tensors` of x are missing in gradients of these `parts` of it, one after the other."""

    def __init__(self, tensors: Sequence[slice], parts: Sequence[slice], device: torch.device) -> None:
        self._tensors, self._parts, self._device = tensors, parts, device

    @cached_property
    def places(self) -> list[list[slice]]:
        """Where each tensor lies in the parts."""
        found: list[list[slice]] = [[] for _ in self._tensors]
        begin = 0
        for part in self._parts:
            for i, whole in enumerate(self._tensors):
                start, stop = max(whole.start, part.start), min(whole.stop, part.stop)
                if start < stop:
                    found[i].append(slice(begin + start - part.start, begin + stop - part.start))
            begin += part.stop - part.start
        return found

    @cached_property
    def _firsts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers of the tensors that lie in the parts, and where the first element of each is."""
        pairs = [(i, places[0].start) for i, places in enumerate(self.places) if places]
        numbers, starts = torch.tensor(pairs, dtype=torch.int64, device="cpu").view(-1, 2).unbind(1)
        return numbers, starts.to(self._device)

    def find(self, g: torch.Tensor) -> set[int]:
        """Return the numbers of the tensors that are missing in g, the gradient of the parts."""
        if g.is_meta:
            return set()
        numbers, starts = self._firsts
        firsts = g[starts]
        return self.of(g, numbers[((firsts == 0) & firsts.signbit()).cpu()].tolist())

    def of(self, g: torch.Tensor, numbers: Iterable[int]) -> set[int]:
        """Return which of the tensors with these numbers, as far as they lie in the parts, are missing in g."""
        return {i for i in numbers if self.places[i] and all(is_missing(g[place]) for place in self.places[i])}

    def mark(self, g: torch.Tensor, numbers: Iterable[int]) -> None:
        """Make these tensors missing in g."""
        for place in (place for i in numbers for place in self.places[i]):
            if not is_missing(g[place]):
                g[place] = -0.0


def is_missing(gradient: torch.Tensor) -> bool:
    """Return whether all elements are -0."""
    return not gradient.is_meta and not gradient.any() and bool(gradient.signbit().all())


def cut(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], ends: set[int]) -> list[nn.Parameter]:
    """Cut the vectors that an optimizer of one group has for parameters, with their gradients and state, at `ends`.

    `ends`: of the pieces, in all elements. The optimizer then has the pieces that are returned, and may skip any.
    """
    pieces, begin = [], 0
    for p in parameters:
        inside = [end - begin for end in sorted(ends) if begin < end < begin + p.numel()]
        begin += p.numel()
        if not inside:
            pieces.append(p)
            continue
        state = optimizer.state.pop(p, {})
        for i, data in enumerate(p.data.tensor_split(inside)):
            piece = nn.Parameter(data)
            piece.grad = None if p.grad is None else p.grad.tensor_split(inside)[i]
            if state:
                optimizer.state[piece] = {name: _part(value, p, inside, i) for name, value in state.items()}
            pieces.append(piece)
    if len(pieces) > len(parameters):
        optimizer.param_groups[0]["params"] = pieces
    return pieces


def _part(value: Any, p: nn.Parameter, inside: Sequence[int], i: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return deepcopy(value)
    return (value.tensor_split(inside)[i] if value.shape == p.shape else value).clone()
