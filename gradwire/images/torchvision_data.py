"""The data sets that torchvision downloads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradwire.core.records.errors import one_line
from gradwire.core.workloads.assemble import from_arrays
from gradwire.core.workloads.data import Data, refused
from gradwire.images.torchvision import import_torchvision


@dataclass(frozen=True)
class Download:
    """One of torchvision's downloadable data sets, and where it lies under the data directory."""

    cls: str
    place: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    root: str = ""  # as torchvision takes it
    split_by: tuple[str, Any, Any] = ("train", True, False)  # its argument, and what that is for each split


SOURCES = {
    "mnist": Download("MNIST", "MNIST/raw", (0.1307,), (0.3081,)),
    "fashion_mnist": Download("FashionMNIST", "FashionMNIST/raw", (0.2860,), (0.3530,)),
    "cifar10": Download("CIFAR10", "cifar-10-batches-py", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Download("CIFAR100", "cifar-100-python", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Download(
        "SVHN", "SVHN", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "SVHN", ("split", "train", "test")
    ),
}


def load_download(name: str, data_dir: Path, download: bool) -> Data:
    """Load the data set `name` of `SOURCES`, and download it first if it may be. Raises UsageError."""
    source = SOURCES[name]
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
    return from_arrays(arrays, scale=(source.mean, source.std))


def _channels_first(images: Any) -> torch.Tensor:
    """Return torchvision's N x H x W, N x H x W x 3 or N x 3 x H x W images as N x C x H x W."""
    x = torch.as_tensor(images)
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.permute(0, 3, 1, 2) if x.shape[-1] == 3 else x
