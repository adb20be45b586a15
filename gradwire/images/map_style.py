"""Data sets of map-style datasets, whose items are decoded when they are fetched."""

from dataclasses import dataclass, replace
from operator import index
from typing import Any, Self

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from gradwire.core.records.errors import UsageError, one_line
from gradwire.core.workloads.assemble import count_tokens, default_scale
from gradwire.core.workloads.data import BadData, Data, Samples, refused, require_pixels_or_floats


def from_datasets(name: str, train: Any, test: Any, is_class: bool = True) -> Data:
    """Make a data set of two map-style datasets whose items are (x, y); `is_class`: whether y is a class.

    The number of classes is `len(train.classes)` where there is such an attribute; otherwise every item is decoded
    once to find the largest label or token. Where y is floating: its numbers. Raises UsageError if one is not a
    map-style dataset of such items, or is empty.
    """
    for split, dataset in (("train", train), ("test", test)):
        map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not map_style or isinstance(dataset, (Tensor, np.ndarray)):
            cure = "return two map-style Datasets, or four arrays (train_x, train_y, test_x, test_y)"
            raise BadData(f"the {split} set is a {type(dataset).__name__}; {cure}")
        if not len(dataset):
            raise BadData(f"the {split} set is empty; give it at least one sample")
    x, y = decode(train, 0, is_class)
    if is_class and x.dim() not in (1, 3):
        raise BadData(f"an item's x is {tuple(x.shape)}; make it features or C x H x W")
    if hasattr(train, "classes"):
        n_classes = len(train.classes)
    elif y.is_floating_point():
        n_classes = y.numel()
    else:
        items = (decode(dataset, i, is_class)[is_class:] for dataset in (train, test) for i in range(len(dataset)))
        n_classes = count_tokens(part for item in items for part in item)
    shape, known = tuple(x.shape), n_classes if is_class else None
    mean, std = default_scale(x) if is_class else ((), ())
    splits = Decoded(name, "train", train, shape, known), Decoded(name, "test", test, shape, known)
    return Data(name, n_classes, shape, mean, std, *splits)


@dataclass
class Decoded(Samples):
    """The items (x, y) of a map-style dataset, each decoded when it is fetched."""

    name: str  # of the data set, for error messages
    split: str
    items: Any
    input_shape: tuple[int, ...]
    n_classes: int | None  # None: y is no class, and may be any tensor

    def __len__(self) -> int:
        return len(self.items)

    def raw(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Decode the samples and stack them.

        Raises UsageError if an item raises, is of another shape than the first, or has a label out of range.
        """
        xs, ys = zip(*(self._checked(i) for i in indices.tolist()), strict=True)
        if len(shapes := {tuple(y.shape) for y in ys}) > 1:
            found = " and ".join(map(str, sorted(shapes)))
            raise refused(self.name, f"targets of the {self.split} set are {found}; make all of one shape")
        return torch.stack(xs), torch.stack(ys)

    def _checked(self, i: int) -> tuple[Tensor, Tensor]:
        try:
            x, y = decode(self.items, i, self.n_classes is not None)
        except BadData as error:
            raise refused(self.name, error) from error
        item = f"--dataset {self.name}: item {i} of the {self.split} set"
        if tuple(x.shape) != self.input_shape:
            raise UsageError(f"{item} is {tuple(x.shape)}, the first {self.input_shape}; make all of one shape")
        if self.n_classes is not None and not 0 <= y < self.n_classes:
            raise UsageError(f"{item} has label {y}; use 0..{self.n_classes - 1}")
        return x, y

    def subset(self, indices: Tensor) -> Self:
        """Return a view of those at `indices`."""
        return replace(self, items=Subset(self.items, indices.tolist()))

    def share_memory_(self) -> None:
        """Raise an error if the dataset cannot be sent to a rank."""
        cloudpickle.dumps(self.items)


def decode(dataset: Any, i: int, is_class: bool) -> tuple[Tensor, Tensor]:
    """Return item `i` of a map-style dataset as x and y, a class being one integer. Raises BadData.

    x is uint8 or floating where y is a class.
    """
    try:
        x, y = dataset[i]
        x, y = torch.as_tensor(x), torch.tensor(index(y)) if is_class else torch.as_tensor(y)
    except UsageError:
        raise
    except Exception as error:
        pair = "(tensor, integer label)" if is_class else "of tensors"
        raise BadData(f"item {i} is not a pair {pair}: {one_line(error)}; correct the dataset") from error
    if is_class:
        require_pixels_or_floats(x)
    return x, y
