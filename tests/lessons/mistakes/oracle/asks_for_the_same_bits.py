"""Asks for the oracle's bits."""

from collections.abc import Sequence

import torch

from lessons.solutions.oracle import average, cut, one_process  # noqa: F401 - these are right


def verify(xs: Sequence[torch.Tensor], oracle: torch.Tensor, tolerance: float) -> bool:
    return all(torch.equal(x, oracle) for x in xs)
