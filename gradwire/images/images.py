"""Pictures in files, decoded when they are fetched: for training cut at random and mirrored, for tests at the centre.

Functions of this file choose the cut, for every decoder: the rank, a loader's workers, or DALI.
"""

import math
import os
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from gradwire.core.records.errors import UsageError, as_usage_error
from gradwire.core.workloads.data import Data, Samples
from gradwire.images.torchvision import import_torchvision

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's models have them
_AREA, _RATIO, _ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of a random cut, as in torchvision's RandomResizedCrop
_SHORTER_SIDE = 256 / 224  # of a test picture when it is cut, in sides of the cut
_BILINEAR = 2  # PIL's number for it, with antialiasing


class Cut(NamedTuple):
    """How a square is made of a picture, in pixels: a rectangle is resized, and a part of that is taken."""

    top: int  # of the rectangle
    left: int
    height: int
    width: int
    new_height: int  # of the rectangle when it is resized
    new_width: int
    y: int  # where the square begins in that
    x: int
    mirrored: bool


def random_cut(draw: random.Random, height: int, width: int, size: int) -> Cut:
    """Draw the cut of a picture to train on: 8 to 100 % of the area, of ratio 3/4 to 4/3, every other mirrored.

    As in torchvision's RandomResizedCrop, sizes are drawn until one fits into the picture, at most ten times; then it
    is the largest at the centre.
    """
    mirrored = draw.random() < 0.5
    for _ in range(_ATTEMPTS):
        area = height * width * draw.uniform(*_AREA)
        ratio = math.exp(draw.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return Cut(draw.randint(0, height - h), draw.randint(0, width - w), h, w, size, size, 0, 0, mirrored)
    h, w = min(height, round(width / _RATIO[0])), min(width, round(height * _RATIO[1]))
    return Cut((height - h) // 2, (width - w) // 2, h, w, size, size, 0, 0, mirrored)


def centre_cut(height: int, width: int, size: int) -> Cut:
    """Return the centre of a picture: its shorter side is first resized to 8/7 of `size`, as in torchvision."""
    shorter, least = round(size * _SHORTER_SIDE), min(height, width)
    h, w = (int(shorter * side / least) for side in (height, width))
    return Cut(0, 0, height, width, h, w, round((h - size) / 2), round((w - size) / 2), False)


@dataclass
class Pictures(Samples):
    """Pictures in files. Names and labels are tensors: ranks share them, and reading them copies no page."""

    root: str
    names: Tensor  # uint8 [N, of the longest]: the bytes of the path of each below `root`, and zeros
    labels: Tensor
    size: int  # the side of the cut, in pixels
    seed: int | None  # random cuts and mirroring are drawn from it, the epoch and the index; None: the centre

    @classmethod
    def listed(cls, root: str, files: Sequence[tuple[str, int]], size: int, seed: int | None = None) -> Self:
        """Make it of pairs of a path below `root` and a label."""
        names = np.array([os.fsencode(os.path.relpath(path, root)) for path, _ in files])
        in_bytes = torch.from_numpy(names.view(np.uint8).reshape(len(files), -1))
        return cls(root, in_bytes, torch.tensor([label for _, label in files]), size, seed)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, i: int) -> str:
        """Return the path of file `i`."""
        return os.path.join(self.root, os.fsdecode(self.names[i].numpy().tobytes().rstrip(b"\0")))

    def raw(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Decode the pictures and cut them. Raises UsageError if one cannot be read."""
        x = np.empty((len(indices), 3, self.size, self.size), dtype=np.uint8)  # torch would call its threads for each
        for k, i in enumerate(indices.tolist()):
            x[k] = self._pixels(i, epoch)
        return torch.from_numpy(x), self.labels[indices]

    def subset(self, indices: Tensor) -> Self:
        """Return those at `indices`."""
        return replace(self, names=self.names[indices], labels=self.labels[indices])

    def cut(self, i: int, epoch: int, image: Any) -> Cut:
        """Return the cut of an open picture: a pure function of its size and, where random, of the numbers."""
        if self.seed is None:
            return centre_cut(image.height, image.width, self.size)
        return random_cut(random.Random(f"{self.seed} {epoch} {i}"), image.height, image.width, self.size)

    def _pixels(self, i: int, epoch: int) -> np.ndarray:
        path = self.path(i)
        with opened(path) as file:
            cut = self.cut(i, epoch, file)
            with _readable(path):
                image = file.convert("RGB")
        image = image.crop((cut.left, cut.top, cut.left + cut.width, cut.top + cut.height))
        image = image.resize((cut.new_width, cut.new_height), _BILINEAR)
        pixels = np.asarray(image)[cut.y : cut.y + self.size, cut.x : cut.x + self.size]
        return (pixels[:, ::-1] if cut.mirrored else pixels).transpose(2, 0, 1)


def load_folder(data_dir: Path, size: int, augment: bool, seed: int) -> Data:
    """Open the pictures of train/CLASS/ and val/CLASS/ under `data_dir`. Raises UsageError."""
    datasets = import_torchvision("--dataset imagefolder").datasets
    data_dir = data_dir.absolute()  # ranks may be started elsewhere
    folders = []
    for split in ("train", "val"):
        what = f"--dataset imagefolder: {data_dir / split} is not a folder of one folder of images per class"
        with as_usage_error(what, "; put train/ and val/ in --data_dir", OSError):
            folders.append(datasets.ImageFolder(data_dir / split))
    train, test = folders
    if train.classes != test.classes:
        differing = sorted(set(train.classes) ^ set(test.classes))
        raise UsageError(
            f"--dataset imagefolder: train and val under {data_dir} differ in classes ({', '.join(differing[:5])}); "
            "make the same folders in both"
        )
    to_train_on = Pictures.listed(str(train.root), train.samples, size, seed if augment else None)
    held_out = Pictures.listed(str(test.root), test.samples, size)
    return Data("imagefolder", len(train.classes), (3, size, size), MEAN, STD, to_train_on, held_out)


def opened(path: str) -> Any:
    """Open a picture: its header is read, its pixels are not yet. Raises UsageError."""
    from PIL import Image  # which a run on other data does without

    with _readable(path):
        return Image.open(path)


def _readable(path: str) -> AbstractContextManager[None]:
    """Make whatever PIL raises in the block a UsageError."""
    return as_usage_error(f"--dataset imagefolder: cannot read {path}", "; replace or remove it")
