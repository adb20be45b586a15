"""The wing of images: data sets that are decoded on demand, and what decodes them; torchvision's data and models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.launchers.launcher import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE_ALWAYS, option
from gradwire.core.training.options import Panel
from gradwire.core.training.wing import Wing
from gradwire.core.workloads.data import Data, Fetcher
from gradwire.core.workloads.datasets import DATASETS, MAKERS, Source
from gradwire.core.workloads.models import MODELS, Model

DALI, LENET = "dali", "lenet"
LOADERS = ("torch", DALI)
DOWNLOADS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn")
TORCHVISION_MODELS = ("mobilenet_v2", "resnet18", "resnet34", "resnet50", "vgg11", "alexnet")


def _load_download(name: str, options: Any, data_dir: Path, seed: int) -> Data:
    from gradwire.images.torchvision_data import load_download

    return load_download(name, data_dir, options.download)


def _load_folder(options: Any, data_dir: Path, seed: int) -> Data:
    from gradwire.images.images import load_folder

    return load_folder(data_dir, options.image_size, options.augment, seed)


def _of_datasets(name: str, datasets: Sequence[Any], is_class: bool) -> Data:
    from gradwire.images.map_style import from_datasets

    train, test = datasets
    return from_datasets(name, train, test, is_class)


def _build(name: str, input_shape: tuple[int, ...], n_classes: int, options: str) -> nn.Module:
    if len(input_shape) != 3:
        raise UsageError(f"--model {name}: needs images, but a sample is {input_shape}; take --model mlp")
    from gradwire.images import lenet, torchvision_models

    if name == LENET:
        return lenet.build(input_shape, n_classes)
    return torchvision_models.build(name, input_shape, n_classes)


MAKERS[2] = _of_datasets
DATASETS.update({name: Source(partial(_load_download, name)) for name in DOWNLOADS}, imagefolder=Source(_load_folder))
MODELS.update({name: Model(partial(_build, name)) for name in (LENET, *TORCHVISION_MODELS)})


@dataclass(frozen=True, kw_only=True)
class ImageOptions(Panel):
    """How pictures are found, cut and decoded."""

    download: bool = field(default=False, metadata=MAY_CHANGE_ALWAYS)
    """Let torchvision download the data set if it is not there."""
    image_size: int = option(224, least=1)
    """Side of the pictures of imagefolder, in pixels."""
    augment: bool = True
    """Cut the training pictures of imagefolder at random and mirror half of them; without, they are cut at the centre
    as the test pictures are. Other data sets stay as they are."""
    loader: str = option("torch", choices=LOADERS)
    """What decodes: torch (PIL, and the processes of a DataLoader if there are --loader_workers), or dali (NVIDIA DALI,
    for imagefolder: pip install -e '.[dali]')."""
    loader_workers: int = option(0, least=0, metadata=MAY_CHANGE_ALWAYS)
    """Processes beside each rank that decode the next batches meanwhile, to the same bits; 0: the rank decodes a batch
    when it wants it. With dali its threads, at least one."""

    def make_fetcher(self, data: Data, device: torch.device) -> Fetcher:
        """Return what decodes the batches of a rank on this device."""
        if self.loader == DALI:
            from gradwire.images.dali import fetch_by_dali  # an optional package

            return partial(fetch_by_dali, data, max(1, self.loader_workers), device)
        if self.loader_workers:
            from gradwire.images.processes import fetch_by_processes

            return partial(fetch_by_processes, data, self.loader_workers, device, die_with_parent)
        return super().make_fetcher(data, device)


class Images(Wing):
    """Pictures and their decoders."""

    title = "images"
    panel = ImageOptions

    def resolve(self, options: ImageOptions, launcher: Launcher) -> ImageOptions:
        """Check that ranks which share a process leave the decoding to it."""
        for name in ("loader", "loader_workers"):
            if not launcher.processes and (value := getattr(options, name)) != getattr(ImageOptions, name):
                raise UsageError(
                    f"--{name} {value}: in {launcher.name} all ranks share a process, which decodes for them; leave it "
                    "out"
                )
        return options

    def check(self, options: ImageOptions, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that DALI can read the data."""
        if options.loader == DALI:
            from gradwire.images.dali import check_dali

            check_dali(data)


WING = Images()
