"""Small folders of pictures for tests."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
SIZE = 24  # of what is cut
N_CLASSES, PER_CLASS = 3, 7


def write_pictures(folder: Path, per_class: int = PER_CLASS) -> Path:
    """Write JPEG files of smooth noise, of different sizes, wide and tall; no two are alike."""
    random = np.random.default_rng(0)
    for split, n in (("train", per_class), ("val", 3)):
        for label in range(N_CLASSES):
            place = folder / split / f"class {label}"
            place.mkdir(parents=True)
            for i in range(n):
                height, width = (40 + i, 60) if i % 2 else (53, 37 + i)  # margins of the centre odd and even
                coarse = Image.fromarray(random.integers(0, 256, (7, 7, 3), np.uint8))
                coarse.resize((width, height), Image.Resampling.BICUBIC).save(place / f"{i}.jpg", quality=90)
    return folder
