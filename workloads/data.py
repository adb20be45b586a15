"""What a loaded data set is: tensors in memory, or items decoded on demand; both give normalised batches."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils.data import Subset

from records.errors import UsageError, one_line

Split = Literal["train", "test"]


@dataclass
class Data(ABC):
    """A classification data set with a training and a test split; it can be pickled."""

    name: str  # by which it was loaded, for error messages
    n_classes: int  # labels are 0..n_classes-1
    input_shape: tuple[int, ...]  # of one sample, (C, H, W) or (features,)
    mean: tuple[float, ...]  # is subtracted, one value or one a channel; of values in 0..1 where the source is uint8
    std: tuple[float, ...]  # is divided by after that, likewise

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return self.count("train")

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return self.count("test")

    @abstractmethod
    def count(self, split: Split) -> int:
        """Return the number of samples of a split."""

    @abstractmethod
    def raw(self, indices: Tensor, split: Split, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Return samples as stored, on the CPU: x (B, *input_shape) uint8 or float, and y (B,) int64; both are new.

        What is drawn at random for a training sample is a function of the seed, the epoch and its index.
        """

    @abstractmethod
    def train_subset(self, indices: Tensor) -> Self:
        """Return the data set with only the training samples at `indices`."""

    def share_memory_(self) -> Self:
        """Move what is held as tensors, by default nothing, into shared memory; return the data set itself."""
        return self

    def fetch(
        self,
        indices: Tensor,
        split: Split = "train",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        epoch: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return a normalised batch on `device`: x (B, *input_shape) of `dtype`, and y (B,) int64.

        `indices` (B,) int64 are positions in the split, on the CPU. The batch travels as stored, and is normalised on
        its device; a half type is rounded to only after that. Raises UsageError if an item that is decoded on demand
        is bad.
        """
        return self.normalise(*self.raw(indices, split, epoch), device, dtype)

    def normalise(
        self, stored: Tensor, y: Tensor, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Make a batch of `fetch` of one as `raw` gives it, which may be written to."""
        compute = torch.promote_types(dtype, torch.float32)
        x = stored.to(device).to(compute)
        if stored.dtype == torch.uint8:
            x /= 255
        mean = _per_channel(self.mean, x.dim() - 2, x.device, compute)
        std = _per_channel(self.std, x.dim() - 2, x.device, compute)
        x -= mean
        x /= std
        return x.to(dtype), y.to(device)


@lru_cache(maxsize=16)
def _per_channel(values: tuple[float, ...], trailing: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, device=device, dtype=dtype).view(-1, *[1] * trailing)


@dataclass
class TensorData(Data):
    """A data set held whole: x (N, *input_shape) uint8 or float, and y (N,) int64, in CPU tensors."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def count(self, split: Split) -> int:
        """See Data."""
        return len(self.train_y if split == "train" else self.test_y)

    def raw(self, indices: Tensor, split: Split, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Copy the samples out of the tensors."""
        if split == "train":
            return self.train_x[indices], self.train_y[indices]
        return self.test_x[indices], self.test_y[indices]

    def train_subset(self, indices: Tensor) -> Self:
        """Return the data set with a copy of only the training samples at `indices`."""
        return replace(self, train_x=self.train_x[indices], train_y=self.train_y[indices])

    def share_memory_(self) -> Self:
        """Move the four tensors into shared memory."""
        for tensor in (self.train_x, self.train_y, self.test_x, self.test_y):
            tensor.share_memory_()
        return self


@dataclass
class LazyData(Data):
    """A data set of map-style datasets, each item (x, y) decoded when it is fetched."""

    train: Any
    test: Any

    def count(self, split: Split) -> int:
        """See Data."""
        return len(self.train if split == "train" else self.test)

    def raw(self, indices: Tensor, split: Split, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Decode the samples and stack them.

        Raises UsageError if an item raises, is of another shape than the first, or has a label out of range.
        """
        dataset = self.train if split == "train" else self.test
        xs, ys = [], []
        for i in indices.tolist():
            x, y = decode(self.name, dataset, i)
            if tuple(x.shape) != self.input_shape:
                raise UsageError(
                    f"--dataset {self.name}: item {i} of the {split} set is {tuple(x.shape)}, the first "
                    f"{self.input_shape}; make all of one shape"
                )
            if not 0 <= y < self.n_classes:
                raise UsageError(
                    f"--dataset {self.name}: item {i} of the {split} set has label {y}; use 0..{self.n_classes - 1}"
                )
            xs.append(x)
            ys.append(y)
        return torch.stack(xs), torch.tensor(ys, dtype=torch.int64)

    def train_subset(self, indices: Tensor) -> Self:
        """Return the data set with a view of only the training samples at `indices`."""
        return replace(self, train=Subset(self.train, indices.tolist()))


def decode(name: str, dataset: Any, i: int) -> tuple[Tensor, int]:
    """Return item `i` of a map-style dataset as x, a uint8 or floating tensor, and y. Raises UsageError."""
    try:
        x, y = dataset[i]
        x, y = torch.as_tensor(x), index(y)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"--dataset {name}: item {i} is not a pair (tensor, integer label): {one_line(error)}; correct the dataset"
        ) from error
    require_pixels_or_floats(name, x)
    return x, y


def require_pixels_or_floats(name: str, x: Tensor) -> None:
    """Raise a UsageError if `x` is neither uint8 nor floating."""
    if x.dtype != torch.uint8 and not x.dtype.is_floating_point:
        raise UsageError(f"--dataset {name}: x is {x.dtype}; make it uint8 (pixels 0..255) or floating")
