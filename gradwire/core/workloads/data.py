"""Loaded data sets: two splits, in memory or decoded on demand, which give normalised batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from gradwire.core.records.errors import UsageError

Split = Literal["train", "test"]


class Request(NamedTuple):
    """A batch, or a part of one, that is wanted."""

    indices: Tensor  # (B,) int64, on the CPU: positions in the split
    split: Split = "train"
    epoch: int = 0


Answers = Iterator[tuple[Tensor, Tensor]]
Fetcher = Callable[[Iterator[Request], int], Answers]
"""Gives for each of some requests, in their order, what `Data.raw` gives; the number counts the samples in the largest.

It may take requests from the iterator before their answers are needed.
"""


class Samples(ABC):
    """The samples of a split; they can be pickled."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    @abstractmethod
    def raw(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return samples as stored, on the CPU: x (B, *input_shape) and y (B, ...), classes as int64; both are new.

        Random augmentation of a sample depends only on the seed, the epoch and its index.
        """

    @abstractmethod
    def subset(self, indices: Tensor) -> Self:
        """Return only those at `indices`."""

    def share_memory_(self) -> None:
        """Move tensors into shared memory; raise an error if the rest cannot be passed to other processes."""
        for held in vars(self).values():
            if isinstance(held, Tensor):
                held.share_memory_()


@dataclass
class Data:
    """A data set with a training and a test split; it can be pickled."""

    name: str  # by which it was loaded, for error messages
    n_classes: int  # labels, or tokens, are 0..n_classes-1; of a target that is no integer its numbers
    input_shape: tuple[int, ...]  # of one sample; of classification (C, H, W) or (features,)
    mean: tuple[float, ...]  # is subtracted, one value or one a channel; of values in 0..1 where the source is uint8
    std: tuple[float, ...]  # is divided by after that, likewise
    train: Samples
    test: Samples
    task: str = "classification"  # the loss and the scores: see `gradwire.core.workloads.tasks`
    n_per_sample: int = 1  # how many terms of the loss a sample has, as the task's check found
    vocabulary: str | None = None  # of text: the characters that the numbers 0..n_classes-1 stand for

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return len(self.train)

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return len(self.test)

    def samples(self, split: Split) -> Samples:
        """Return the samples of a split."""
        return self.train if split == "train" else self.test

    def raw(self, request: Request) -> tuple[Tensor, Tensor]:
        """Return the requested samples as stored, as `Samples.raw` does. Raises UsageError if an item is bad."""
        return self.samples(request.split).raw(request.indices, request.epoch)

    def fetch(
        self,
        indices: Tensor,
        split: Split = "train",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        epoch: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return a normalised batch on `device`: x (B, *input_shape) and y; floating tensors have `dtype`.

        The batch travels as stored, and is normalised on its device; a half type is rounded to only after that. Raises
        UsageError if an item that is decoded on demand is bad.
        """
        return self.normalise(*self.raw(Request(indices, split, epoch)), device, dtype)

    def normalise(
        self, stored: Tensor, y: Tensor, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Make a batch of `fetch` of one as `raw` gives it, which may be written to.

        Integers but those of pixels pass as they are; without `mean`, everything does.
        """
        y = y.to(device, dtype if y.is_floating_point() else y.dtype)
        if not stored.is_floating_point() and (stored.dtype != torch.uint8 or not self.mean):
            return stored.to(device), y
        compute = torch.promote_types(dtype, torch.float32)
        x = stored.to(device).to(compute)
        if stored.dtype == torch.uint8:
            x /= 255
        if self.mean:
            x -= _per_channel(self.mean, x.dim() - 2, x.device, compute)
            x /= _per_channel(self.std, x.dim() - 2, x.device, compute)
        return x.to(dtype), y


def fetch_here(data: Data, requests: Iterator[Request], largest: int) -> Answers:
    """Decode each batch when it is wanted: a `Fetcher`, with the data."""
    for request in requests:
        yield data.raw(request)


@lru_cache(maxsize=16)
def _per_channel(values: tuple[float, ...], trailing: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, device=device, dtype=dtype).view(-1, *[1] * trailing)


@dataclass
class InMemory(Samples):
    """Samples held whole: x (N, *input_shape) and y (N, ...), in CPU tensors."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def raw(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Copy the samples out of the tensors."""
        return self.x[indices], self.y[indices]

    def subset(self, indices: Tensor) -> Self:
        """Copy the samples at `indices`."""
        return replace(self, x=self.x[indices], y=self.y[indices])


class BadData(ValueError):
    """What is wrong with a data set, and the cure, without its name: `refused` puts that before it."""


def require_pixels_or_floats(x: Tensor) -> None:
    """Raise BadData if `x`, the input of a classification, is neither uint8 nor floating."""
    if x.dtype != torch.uint8 and not x.dtype.is_floating_point:
        raise BadData(f"x is {x.dtype}; make it uint8 (pixels 0..255) or floating, or give another --task")


def refused(name: str, why: object) -> UsageError:
    """Return the UsageError for the data set of this name, which says why it is refused."""
    return UsageError(f"--dataset {name}: {why}")
