"""Tensors without a gradient, which torch's optimizers leave as they are: in a vector of gradients they are -0.

No gradient of a backward pass is -0 there, and a sum of -0 is -0. So a tensor that is -0 everywhere in the sum over
ranks had a gradient on none of them, and no message more is needed to know it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import nn


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
        found = numbers[((firsts == 0) & firsts.signbit()).cpu()].tolist()
        return {i for i in found if all(is_missing(g[place]) for place in self.places[i])}

    def mark(self, g: torch.Tensor, numbers: Iterable[int]) -> None:
        """Make these tensors missing in g."""
        for place in (place for i in numbers for place in self.places[i]):
            if not is_missing(g[place]):
                g[place] = -0.0


def is_missing(gradient: torch.Tensor) -> bool:
    """Return whether all elements are -0."""
    return not gradient.any() and bool(gradient.signbit().all())


@contextmanager
def left_out(optimizer: torch.optim.Optimizer, places: Iterable[tuple[nn.Parameter, slice]]) -> Iterator[None]:
    """In the block, which takes a step, leave these places of parameters as they are where the gradient is missing.

    The optimizer does so with a parameter of which it is all. Of one that has other elements too, the value and the
    state are put back after the step; state that is made in it begins at what a gradient of 0 gives, without decay.
    """
    before: list[tuple[nn.Parameter, slice, dict[str, torch.Tensor]]] = []
    for p, place in places:
        if p.grad is None or not is_missing(p.grad.view(-1)[place]):
            continue
        if place == slice(0, p.numel()):
            p.grad = None
        else:
            before.append((p, place, {name: t.clone() for name, t in _at(optimizer, p, place).items()}))
    yield
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    for p, place, values in before:
        for name, view in _at(optimizer, p, place).items():
            if name in values:
                view.copy_(values[name])
            elif decays:
                view.zero_()


def _at(optimizer: torch.optim.Optimizer, p: nn.Parameter, place: slice) -> dict[str, torch.Tensor]:
    """Return the value and the state of some elements of a parameter."""
    tensors = {"": p.data} | {name: t for name, t in optimizer.state[p].items() if isinstance(t, torch.Tensor)}
    return {name: t.view(-1)[place] for name, t in tensors.items() if t.shape == p.shape}
