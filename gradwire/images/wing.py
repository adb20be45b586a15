"""The wing of images: torchvision's data sets and models, folders of pictures, and DALI, for the tables of the core."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.core.workloads.data import Data, Fetcher
from gradwire.core.workloads.datasets import DATASETS, Source
from gradwire.core.workloads.loading import LOADERS, LoaderKind
from gradwire.core.workloads.models import MODELS, Model
from gradwire.images.torchvision_data import SOURCES, load_download
from gradwire.images.torchvision_models import LEAST_SIDE, build


def _load_download(name: str, options: Any, data_dir: Path, seed: int) -> Data:
    return load_download(name, data_dir, options.download)


def _load_folder(options: Any, data_dir: Path, seed: int) -> Data:
    from gradwire.images.images import load_folder

    return load_folder(data_dir, options.image_size, options.augment, seed)


def _build(name: str, input_shape: tuple[int, ...], n_classes: int, options: str) -> nn.Module:
    return build(name, input_shape, n_classes)


def _by_dali(data: Data, workers: int, device: torch.device, on_start: object) -> Fetcher:
    from gradwire.images.dali import fetch_by_dali  # an optional package

    return partial(fetch_by_dali, data, max(1, workers), device)


def _check_dali(data: Data) -> None:
    from gradwire.images.dali import check_dali

    check_dali(data)


DATASETS.update({name: Source(partial(_load_download, name)) for name in SOURCES}, imagefolder=Source(_load_folder))
MODELS.update({name: Model(partial(_build, name), takes_images=True) for name in LEAST_SIDE})
LOADERS["dali"] = LoaderKind(_by_dali, _check_dali)
