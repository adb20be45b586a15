"""The outer step, with which a round of local SGD ends: the x that all began with steps towards the mean of the x_k.

    d = x_before - sum of n_k x_k / sum of n_k             (DiLoCo)
    d = sum of n_k code(x_before - x_k) / sum of n_k       by a codec (SparseLoCo)
    x_before <- SGD with Nesterov momentum(x_before, d);   x_k <- x_before

A part of the strategy `local_sgd`.
"""

from collections.abc import Callable

import torch

from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.codes import Coder
from gradwire.core.strategy.factories import outer_sgd

AllReduce = Callable[[torch.Tensor, int], int]


class OuterStep:
    """What becomes of `before` [n], the x with which a round began, when it ends."""

    def __init__(self, before: torch.nn.Parameter, lr: float, momentum: float, recorder: Recorder) -> None:
        self.before, self.sgd = before, outer_sgd([before], lr, momentum)
        self._recorder = recorder

    def towards(self, mean: torch.Tensor) -> torch.Tensor:
        """Take the step by x_before - mean, and return the new x_before [n]."""
        with self._recorder.phase("update"):
            self.before.grad = torch.sub(self.before.data, mean)
            self.sgd.step()
        return self.before.data

    def by_codes(self, x: torch.Tensor, n: int, coding: Coder, all_reduce: AllReduce, d: torch.Tensor) -> torch.Tensor:
        """Take the step by `d` [n], the mean of the codes of all x_before - x_k; return the new x_before [n]."""
        coding.mean(torch.sub(self.before.data, x, out=d), n, all_reduce)
        with self._recorder.phase("update"):
            self.before.grad = d
            self.sgd.step()
        return self.before.data
