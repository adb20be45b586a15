"""The data sets by name: torchvision's, small digits, a synthetic one, text, and the user's own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from gradwire.core.records.errors import UsageError, one_line, unknown
from gradwire.core.workloads.assemble import from_arrays, from_datasets, of_any_task
from gradwire.core.workloads.data import Data, refused
from gradwire.core.workloads.lookup import call_user_function, import_torchvision
from gradwire.core.workloads.options import DataOptions
from gradwire.core.workloads.tasks import CLASSIFICATION, find
from gradwire.images.images import load_folder
from gradwire.language.text import CONTEXT, TEXTS, load_text


@dataclass(frozen=True)
class _Source:
    """One of torchvision's downloadable data sets, and where it lies under the data directory."""

    cls: str
    place: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    root: str = ""  # as torchvision takes it
    split_by: tuple[str, Any, Any] = ("train", True, False)  # its argument, and what that is for each split


_SOURCES = {
    "mnist": _Source("MNIST", "MNIST/raw", (0.1307,), (0.3081,)),
    "fashion_mnist": _Source("FashionMNIST", "FashionMNIST/raw", (0.2860,), (0.3530,)),
    "cifar10": _Source("CIFAR10", "cifar-10-batches-py", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": _Source("CIFAR100", "cifar-100-python", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": _Source(
        "SVHN", "SVHN", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "SVHN", ("split", "train", "test")
    ),
}

DATASETS = ("synthetic", "digits", *TEXTS, *_SOURCES, "imagefolder")
"""The names that `load` knows, besides yourmodule:function."""


def load(options: DataOptions, seed: int = 0) -> Data:
    """Load a data set into memory, or open it if it is decoded on demand.

    yourmodule:function is called without argument for four tensors or arrays (train_x, train_y, test_x, test_y) or for
    two map-style datasets (train, test) of items (x, y), by default of classes. `--train_size` takes the first samples
    of a fixed permutation. `seed` makes the synthetic data set, and the random cuts of imagefolder; the others do not
    depend on it. Raises UsageError if there is no such data set, or it is missing, damaged, badly formed or too small.
    """
    if options.task is not None:
        find(options.task)
    data, size = _load_whole(options, Path(options.data_dir).expanduser(), seed), options.train_size
    if options.task == CLASSIFICATION and data.vocabulary is not None:
        raise UsageError(f"--task {CLASSIFICATION}: --dataset {options.dataset} has no classes; leave it out")
    data = data if options.task is None else replace(data, task=options.task)
    if not 0 <= size <= data.n_train:
        raise UsageError(
            f"--train_size: {size} is not in 1..{data.n_train}, what {options.dataset} has; take 0 for all"
        )
    if not size:
        return data
    chosen = np.random.default_rng(0).permutation(data.n_train)[:size]
    return replace(data, train=data.train.subset(torch.from_numpy(chosen)))


def _load_whole(options: DataOptions, data_dir: Path, seed: int) -> Data:
    name, context = options.dataset, options.context
    if name in TEXTS:
        return load_text(name, data_dir, CONTEXT if context is None else context)
    if context is not None:
        raise UsageError(f"--context {context}: --dataset {name} is no text; leave it out")
    if ":" in name:
        return _user(name, options.task in (None, CLASSIFICATION))
    if name in _SOURCES:
        return _from_torchvision(name, data_dir, options.download)
    if name == "imagefolder":
        return load_folder(data_dir, options.image_size, options.augment, seed)
    if name == "digits":
        return _digits()
    if name == "synthetic":
        return _synthetic(seed)
    raise unknown("--dataset", name, DATASETS, "yourmodule:function")


def _user(name: str, is_class: bool) -> Data:
    result, name = call_user_function("--dataset", name), str(name)
    if isinstance(result, (tuple, list)) and len(result) == 4:
        return from_arrays(name, result) if is_class else of_any_task(name, result)
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return from_datasets(name, result[0], result[1], is_class)
    kind = f"{len(result)} things" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
    raise refused(name, f"returned {kind}; return (train_x, train_y, test_x, test_y) or (train Dataset, test Dataset)")


def _synthetic(seed: int, n_train: int = 2048, n_test: int = 512, n_classes: int = 10) -> Data:
    """Smooth random images, each the enlargement of 4 x 4 numbers of which a linear teacher decides the label."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n_train + n_test, 1, 4, 4, generator=generator)
    y = (hidden.flatten(1) @ torch.randn(16, n_classes, generator=generator)).argmax(1)
    x = interpolate(hidden, size=(28, 28), mode="bilinear")
    x += 0.1 * torch.randn(x.shape, generator=generator)
    return from_arrays("synthetic", (x[:n_train], y[:n_train], x[n_train:], y[n_train:]), n_classes)


def _digits() -> Data:
    """The 8 x 8 digits of the UCI archive (Alpaydin and Kaynak, 1998, CC BY 4.0), as in scikit-learn, a fifth held out.

    The file is scikit-learn's `load_digits`, split by `train_test_split(x, y, test_size=0.2, stratify=y,
    random_state=0)`: kept here, since importing scikit-learn takes a second.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as kept:
        train_x, test_x = ((kept[name] / 16).astype(np.float32).reshape(-1, 1, 8, 8) for name in ("train_x", "test_x"))
        train_y, test_y = (kept[name].astype(np.int64) for name in ("train_y", "test_y"))
    scale = (float(train_x.mean()),), (float(train_x.std()),)
    return from_arrays("digits", (train_x, train_y, test_x, test_y), scale=scale)


def _from_torchvision(name: str, data_dir: Path, download: bool) -> Data:
    source = _SOURCES[name]
    cls = getattr(import_torchvision(f"--dataset {name}").datasets, source.cls)
    place, (argument, *values) = data_dir / source.place, source.split_by
    present = place.is_dir() and any(place.iterdir())
    if not present and not download:
        raise refused(name, f"not found under {place}; add --download, put its files there, or correct --data_dir")
    try:
        splits = [cls(data_dir / source.root, download=download, **{argument: split}) for split in values]
    except ImportError as error:
        raise refused(name, f"{one_line(error)}; install what is missing with pip") from error
    except Exception as error:
        cure = (
            f"{place} is incomplete or corrupt ({one_line(error)}); remove it and add --download"
            if present
            else f"the download failed ({one_line(error)}); check the network, or put its files under {place}"
        )
        raise refused(name, cure) from error
    arrays: list[torch.Tensor] = []
    for split in splits:
        labels = split.labels if hasattr(split, "labels") else split.targets
        arrays += _channels_first(split.data), torch.as_tensor(labels)
    return from_arrays(name, arrays, scale=(source.mean, source.std))


def _channels_first(images: Any) -> torch.Tensor:
    """Return torchvision's N x H x W, N x H x W x 3 or N x 3 x H x W images as N x C x H x W."""
    x = torch.as_tensor(images)
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.permute(0, 3, 1, 2) if x.shape[-1] == 3 else x
