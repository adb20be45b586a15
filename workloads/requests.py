"""The requests that a loader takes, and the answers that it gives."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from workloads.data import Split


class Request(NamedTuple):
    """A batch, or a part of one, that is wanted."""

    indices: Tensor
    split: Split = "train"
    epoch: int = 0


Answers = Iterator[tuple[Tensor, Tensor]]
Fetcher = Callable[[Iterator[Request], int], Answers]
"""Gives for each of some requests, in their order, what `Data.raw` gives; the number counts the samples in the largest.

It may take requests from the iterator before their answers are needed.
"""
