"""Delayed Nesterov: a server adds each push, and applies its momentum once in M pushes (a part of `downpour`).

    every push d:     x <- x + eta d / M
    the last of M:    m <- beta m + mean of the M pushes;  x <- x + eta beta m

(Liu et al., 2024, arXiv 2401.09135, algorithm 3 with c = 0; M = 1: at each push, as usual.)
"""

import torch


class DelayedNesterov:
    """The momentum of a server: `m` [n], and how many pushes it has added."""

    def __init__(self, like: torch.Tensor, eta: float, beta: float, M: int) -> None:
        self.m, self.pushes = torch.zeros_like(like), torch.zeros(1, dtype=torch.int64, device="cpu")
        self._eta, self._beta, self._M = eta, beta, M

    def add(self, x: torch.Tensor, d: torch.Tensor) -> None:
        """Add a push d [n] to x [n]. Meanwhile m has beta m and the sum of the pushes so far."""
        x.add_(d, alpha=self._eta / self._M)
        if self.pushes % self._M == 0:
            self.m.mul_(self._beta)
        self.m.add_(d, alpha=1 / self._M)
        self.pushes += 1
        if self.pushes % self._M == 0:
            x.add_(self.m, alpha=self._eta * self._beta)
