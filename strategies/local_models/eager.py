"""Eager updates: a rank takes its own difference at once, and those of the others a round late.

A rank has an x0 of its own. When fragment p has its turn, every H steps, rank k

    d_k = x0_k,p - x_k,p
    x0_k,p <- Nesterov(x0_k,p, the mean of d_k and of the others' d_j of H steps ago, weighted by n_j; first d_j = 0)
    x_k,p <- x0_k,p;  sends n_k d_k, to be summed round a ring

(Kale et al., 2025, arXiv 2502.12996.) A part of the strategy `streaming_diloco`.
"""

from collections.abc import Callable

import torch

from strategies.local_models.fragment import Fragment


class EagerUpdates:
    """What rank k of N does with a fragment that has its turn; `own` [n]: the n_k d_k that it has sent."""

    def __init__(
        self,
        own: torch.Tensor,
        N: int,
        wait_for: Callable[[Fragment], int],
        take_outer_step: Callable[[Fragment, torch.Tensor], None],
    ) -> None:
        self.own, self._N, self._wait_for, self._take_outer_step = own, N, wait_for, take_outer_step

    def fill(self, fragment: Fragment, n: int) -> None:
        """Take the outer step; the sum that is sent <- n_k d_k."""
        x, x0, total = fragment.x, fragment.x0.data, fragment.sum
        own, n_others = self.own[fragment.part], (self._N - 1) * n
        if n_all := self._wait_for(fragment):
            total.sub_(own)
            n_others = n_all - fragment.n_sent
        torch.sub(x0, x, out=own).mul_(n)
        self._take_outer_step(fragment, (total if n_all else total.zero_()).add_(own).div_(n + n_others))
        x.copy_(x0)
        total.copy_(own)
