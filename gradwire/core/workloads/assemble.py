"""Making checked data sets of four arrays; `load` gives them their names."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.workloads.data import BadData, Data, InMemory, require_pixels_or_floats

Scale = tuple[tuple[float, ...], tuple[float, ...]]


def from_arrays(arrays: Sequence[Any], n_classes: int | None = None, scale: Scale | None = None) -> Data:
    """Make a data set of classes of (train_x, train_y, test_x, test_y), tensors or numpy arrays.

    Each x is N x features or N x C x H x W, uint8 or floating; each y is N integers,
    by default as many classes as the largest plus one. `scale`: (mean, std) per channel; if not given, uint8 is brought
    to -1..1 and floats are left as they are. Raises BadData if a type, shape, length or label is wrong.
    """
    train, test = _as_splits(arrays)
    for split, samples in (("train", train), ("test", test)):
        x, y = samples.x, samples.y
        require_pixels_or_floats(x)
        if x.dim() not in (2, 4):
            raise BadData(f"{split}_x is {tuple(x.shape)}; make it N x features or N x C x H x W")
        if y.dim() != 1 or y.dtype == torch.bool or y.dtype.is_floating_point:
            found = f"{split}_y is {tuple(y.shape)} {y.dtype}"
            raise BadData(f"{found}; make it N integer labels, or give another --task")
        samples.y = y.long()
    _check_alike("x", train.x, test.x)
    labels = torch.cat([train.y, test.y])
    n_classes = int(labels.max()) + 1 if n_classes is None else n_classes
    if labels.min() < 0 or labels.max() >= n_classes:
        raise BadData(f"labels go from {labels.min()} to {labels.max()}; count the {n_classes} classes from 0")
    mean, std = scale or default_scale(train.x)
    return Data("", n_classes, tuple(train.x.shape[1:]), mean, std, train, test)


def of_any_task(arrays: Sequence[Any]) -> Data:
    """Make a data set of four tensors or arrays of any types and shapes, for another task than classification.

    Its `n_classes` is the largest integer plus one, or, where y is floating, how many numbers y has of a sample. Raises
    UsageError if the parts of a split differ in length, or the splits in shape or type.
    """
    train, test = _as_splits(arrays)
    for part, of_train, of_test in (("x", train.x, test.x), ("y", train.y, test.y)):
        _check_alike(part, of_train, of_test)
    if train.y.is_floating_point():
        n_outputs = train.y[0].numel()
    else:
        n_outputs = count_tokens(part for split in (train, test) for part in (split.x, split.y))
    return Data("", n_outputs, tuple(train.x.shape[1:]), (), (), train, test)


def count_tokens(parts: Iterable[Tensor]) -> int:
    """Return the largest integer in the parts plus one."""
    return 1 + max(int(part.long().max()) for part in parts if not part.is_floating_point())


def default_scale(x: Tensor) -> Scale:
    """Return the (mean, std) of inputs of this type."""
    return ((0.5,), (0.5,)) if x.dtype == torch.uint8 else ((0.0,), (1.0,))


def _as_splits(arrays: Sequence[Any]) -> tuple[InMemory, InMemory]:
    """Return the training and the test set of four tensors or arrays. Raises BadData."""
    train_x, train_y, test_x, test_y = (
        _as_tensor(what, array) for what, array in zip(("train_x", "train_y", "test_x", "test_y"), arrays, strict=True)
    )
    for split, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if not (x.dim() and y.dim()):
            raise BadData(f"{split}_x or {split}_y is one number; make it one or more of each sample")
        if len(x) != len(y):
            raise BadData(f"{split}_x has {len(x)} samples, {split}_y {len(y)}; make them equal")
        if not len(y):
            raise BadData(f"the {split} set is empty; give it at least one sample")
    return InMemory(train_x, train_y), InMemory(test_x, test_y)


def _check_alike(part: str, train: Tensor, test: Tensor) -> None:
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        of_train, of_test = (f"{tuple(split.shape[1:])} {split.dtype}" for split in (train, test))
        raise BadData(f"a sample of train_{part} is {of_train}, one of test_{part} {of_test}; make them alike")


def _as_tensor(what: str, array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu().contiguous()
    if isinstance(array, np.ndarray) and array.dtype.kind in "buif":
        # Copied, for torch takes neither negative strides nor read-only memory nor a foreign byte order.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    raise BadData(f"{what} is {kind}; make it a tensor or an array of numbers")
