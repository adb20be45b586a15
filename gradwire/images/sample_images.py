"""Write the digits as JPEG files, a folder for each class, to try what reads pictures.

python -m gradwire sample_images pictures

Of each class so many pictures of train/ and a quarter as many of val/, alternately wide and tall, with the detail and
so the bytes of a photograph.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from tyro.conf import Positional, arg

from gradwire.arguments import read_options
from gradwire.core.records.errors import UsageError, between
from gradwire.core.workloads import datasets
from gradwire.ending import run_command
from gradwire.options import Options

_NOISE = 12  # standard deviation, in 255ths


@dataclass(frozen=True)
class Settings:
    """What is written, and where."""

    folder: Annotated[Path, Positional, arg(metavar="FOLDER")]
    """Where train/ and val/ are made; what is there already is written over."""
    per_class: int = 40
    """Training pictures of each class, at most 100."""
    side: int = 64
    """The longer side, in pixels; the other is three quarters of it. Photographs of ImageNet have about 500."""


def write(settings: Settings) -> None:
    """Write the pictures. Raises UsageError."""
    from PIL import Image

    between(settings, "per_class", 4, 100)
    between(settings, "side", 8, 10_000)
    data = datasets.load(Options())
    random = np.random.default_rng(0)
    long, short = settings.side, settings.side * 3 // 4
    splits = (("train", data.train, settings.per_class), ("val", data.test, settings.per_class // 4))
    try:
        for split, samples, n in splits:
            x, y = samples.raw(torch.arange(len(samples)), 0)
            for label in range(data.n_classes):
                folder = settings.folder / split / str(label)
                folder.mkdir(parents=True, exist_ok=True)
                for i, pixels in enumerate(x[y == label][:n]):
                    small = Image.fromarray((pixels[0] * 255).byte().numpy())
                    width, height = (long, short) if i % 2 else (short, long)
                    grey = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
                    tint = random.uniform(0.5, 1, 3)
                    noisy = grey[:, :, None] * tint + random.normal(0, _NOISE, (height, width, 1))
                    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{i:03}.jpg", quality=90)
    except OSError as error:
        raise UsageError(
            f"{error.filename or settings.folder}: cannot be written: {error.strerror or error}"
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the command line asks for; return the exit code."""
    return run_command(
        lambda: write(read_options(sys.argv[1:] if arguments is None else arguments, Settings, str(__doc__)))
    )
