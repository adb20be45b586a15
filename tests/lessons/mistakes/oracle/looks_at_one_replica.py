"""Believes that the replicas are alike, and asks one of them."""

from collections.abc import Sequence

import torch

from lessons.solutions.oracle import average, cut, one_process  # noqa: F401 - these are right


def verify(xs: Sequence[torch.Tensor], oracle: torch.Tensor, tolerance: float) -> bool:
    return bool((xs[0] - oracle).abs().max() <= tolerance * oracle.abs().max())
