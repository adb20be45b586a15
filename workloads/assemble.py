"""Making checked data sets: of four arrays, or of two map-style datasets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from records.errors import UsageError
from workloads.data import Data, Decoded, InMemory, decode, require_pixels_or_floats

Scale = tuple[tuple[float, ...], tuple[float, ...]]


def from_arrays(name: str, arrays: Sequence[Any], n_classes: int | None = None, scale: Scale | None = None) -> Data:
    """Make a data set of (train_x, train_y, test_x, test_y), tensors or numpy arrays; `name`: what the user called it.

    Each x is N x features or N x C x H x W, uint8 or floating; each y is N integers, by default as many classes as the
    largest plus one. `scale`: (mean, std) per channel; if not given, uint8 is brought to -1..1 and floats are left as
    they are. Raises UsageError if a type, shape, length or label is wrong.
    """
    train_x, train_y = _checked_split(name, "train", *arrays[:2])
    test_x, test_y = _checked_split(name, "test", *arrays[2:])
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        raise UsageError(
            f"--dataset {name}: a sample of train_x is {tuple(train_x.shape[1:])} {train_x.dtype}, one of test_x "
            f"{tuple(test_x.shape[1:])} {test_x.dtype}; make them alike"
        )
    labels = torch.cat([train_y, test_y])
    n_classes = int(labels.max()) + 1 if n_classes is None else n_classes
    if labels.min() < 0 or labels.max() >= n_classes:
        raise UsageError(
            f"--dataset {name}: labels go from {labels.min()} to {labels.max()}; count the {n_classes} classes from 0"
        )
    mean, std = scale or _default_scale(train_x)
    train, test = InMemory(train_x, train_y), InMemory(test_x, test_y)
    return Data(name, n_classes, tuple(train_x.shape[1:]), mean, std, train, test)


def from_datasets(name: str, train: Any, test: Any) -> Data:
    """Make a data set of two map-style datasets whose items are (x, y).

    The number of classes is `len(train.classes)` where there is such an attribute; otherwise every item is decoded
    once to find the largest label. Raises UsageError if one is not a map-style dataset of such items, or is empty.
    """
    for split, dataset in (("train", train), ("test", test)):
        map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not map_style or isinstance(dataset, (Tensor, np.ndarray)):
            raise UsageError(
                f"--dataset {name}: the {split} set is a {type(dataset).__name__}; return two map-style Datasets, "
                "or four arrays (train_x, train_y, test_x, test_y)"
            )
        if not len(dataset):
            raise UsageError(f"--dataset {name}: the {split} set is empty; give it at least one sample")
    x, _ = decode(name, train, 0)
    if x.dim() not in (1, 3):
        raise UsageError(f"--dataset {name}: an item's x is {tuple(x.shape)}; make it features or C x H x W")
    if hasattr(train, "classes"):
        n_classes = len(train.classes)
    else:
        n_classes = 1 + max(decode(name, dataset, i)[1] for dataset in (train, test) for i in range(len(dataset)))
    shape = tuple(x.shape)
    splits = (Decoded(name, split, items, shape, n_classes) for split, items in (("train", train), ("test", test)))
    return Data(name, n_classes, shape, *_default_scale(x), *splits)


def _default_scale(x: Tensor) -> Scale:
    return ((0.5,), (0.5,)) if x.dtype == torch.uint8 else ((0.0,), (1.0,))


def _checked_split(name: str, split: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x, y = _as_tensor(name, f"{split}_x", x), _as_tensor(name, f"{split}_y", y)
    require_pixels_or_floats(name, x)
    if x.dim() not in (2, 4):
        raise UsageError(f"--dataset {name}: {split}_x is {tuple(x.shape)}; make it N x features or N x C x H x W")
    if y.dim() != 1 or y.dtype == torch.bool or y.dtype.is_floating_point:
        raise UsageError(f"--dataset {name}: {split}_y is {tuple(y.shape)} {y.dtype}; make it N integer labels")
    if len(x) != len(y):
        raise UsageError(f"--dataset {name}: {split}_x has {len(x)} samples, {split}_y {len(y)}; make them equal")
    if not len(y):
        raise UsageError(f"--dataset {name}: the {split} set is empty; give it at least one sample")
    return x, y.long()


def _as_tensor(name: str, what: str, array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu().contiguous()
    if isinstance(array, np.ndarray) and array.dtype.kind in "buif":
        # Copied, for torch takes neither negative strides nor read-only memory nor a foreign byte order.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    raise UsageError(f"--dataset {name}: {what} is {kind}; make it a tensor or an array of numbers")
