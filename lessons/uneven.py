"""Lab 17, to be filled in: batches that differ from rank to rank. The text is in 17_uneven.ipynb.

python -m lessons.check uneven lessons/uneven.py
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist  # noqa: F401 - for the functions below

EPS = 1e-5


def normalize(x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return (x - mean) / sqrt(variance + EPS), and what `differentiate` will need.

    x [samples, channels] are this rank's samples, of which ranks have different numbers, and some none. Mean and
    variance of a channel are those of the samples of all ranks; the variance is divided by their number.
    """
    raise NotImplementedError("normalize: which sums give both, so that one all-reduce is enough? Of how many samples?")


def differentiate(gradient: torch.Tensor, kept: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the gradient of x, given that of y = normalize(x)[0], this rank's samples by channels.

    For one process it is (g - mean(g) - y mean(g y)) / sqrt(variance + EPS), with means over the samples.
    """
    raise NotImplementedError("differentiate: over which samples are the two means? What is added up over the ranks?")


def train(
    batches: Sequence[torch.Tensor],
    compute: Callable[[torch.Tensor], torch.Tensor],
    update: Callable[[torch.Tensor], None],
    like: torch.Tensor,
) -> None:
    """Train on this rank's batches, step by step with the other ranks, of which some have more batches, some fewer.

    `compute(batch)` returns the mean gradient over the samples of a batch, a vector like `like`. In each step all ranks
    call `update` with the mean over all samples that the ranks have in this step, until no rank has a batch left.
    """
    raise NotImplementedError(
        "train: how many steps are there, and who knows? What does a rank give whose batches are used up, and by how "
        "many samples is a sum divided?"
    )
