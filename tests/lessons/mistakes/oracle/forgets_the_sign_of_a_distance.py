"""Takes a difference for a distance: an element may be too small by any amount."""

from collections.abc import Sequence

import torch

from lessons.solutions.oracle import average, cut, one_process  # noqa: F401 - these are right


def verify(xs: Sequence[torch.Tensor], oracle: torch.Tensor, tolerance: float) -> bool:
    alike = all(torch.equal(x, xs[0]) for x in xs)
    return alike and bool((xs[0] - oracle).max() <= tolerance * oracle.max())
