"""On two cores two workers give more images a second than a rank that decodes by itself, two threads of DALI more yet.

python benchmarks/loading.py

One rank takes batches and does nothing else: JPEG files of 500 pixels, of photographs' size in bytes, which are in
memory, are decoded, cut at random, resized to 224 and normalised. Each block opens a loader, takes batches until
what it fetches beforehand is used up, and times those that follow. Ratios are to torch without workers. DALI with n
workers has n threads; with --device cuda it decodes on the GPU. What is won because the rank computes meanwhile is not
in the figures.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Seconds, Settings, figure, in_turns, main, ratio, require
from launchers.parent import die_with_parent
from training import launch
from transports.base import Transport
from transports.timing import now
from workloads import datasets, sample_images
from workloads.batches import BatchPlan
from workloads.data import Data
from workloads.loading import Loader, fetcher
from workloads.options import DataOptions

_PREFETCHED = 2  # batches, of each worker or of DALI


@dataclass(frozen=True)
class LoadingSettings(Settings):
    """Options of the loading benchmark."""

    repeats: int = 9
    workers: tuple[int, ...] = (0, 1, 2)
    """Numbers of workers; 0, which the others are compared to, must be the first."""
    steps: int = 8
    """Batches in a block."""
    batch_size: int = 32
    """Images in a batch."""
    per_class: int = 20
    """Images of each of ten classes."""
    side: int = 500
    """The longer side of the files, in pixels."""
    image_size: int = 224
    """The side of what is cut."""
    device: str = "cpu"
    """cpu or cuda."""

    least = {"workers": 0}

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(self.workers[0] == 0, "--workers: must begin with 0")
        require(self.batch_size <= 10 * self.per_class, "--batch_size: must be at most 10 x --per_class")
        on_gpu = self.device == "cuda" and torch.cuda.is_available()
        require(self.device == "cpu" or on_gpu, "--device: must be cpu, or cuda where there is a GPU")


Side = tuple[str, int]  # a loader and its number of workers


def seconds_of_a_batch(data: Data, side: Side, settings: LoadingSettings, device: torch.device) -> float:
    """Open a loader; return the seconds of one of its batches when it has nothing left that it fetched beforehand."""
    name, n = side
    plan = BatchPlan(data.n_train // settings.batch_size * settings.batch_size, 1, settings.batch_size, seed=0)
    fetch = fetcher(data, name, n, device, die_with_parent)
    warm_up = 1 + _PREFETCHED * max(1, n)
    with Loader(data, fetch, plan, 0, 1, device, torch.float32) as loader:
        t0 = 0.0
        for i in range(warm_up + settings.steps):
            if i == warm_up:
                t0 = now()
            x, _ = loader.piece(i, 0)
            float(x[0, 0, 0, 0])  # waits for a GPU
        return (now() - t0) / settings.steps


def on_rank(transport: Transport, data: Data, sides: list[Side], settings: LoadingSettings) -> Seconds:
    """Measure all sides in turns; return the seconds of a batch, of each side's blocks."""
    blocks = {str(one): partial(seconds_of_a_batch, data, one, settings, transport.device) for one in sides}
    return in_turns(blocks, settings.repeats)


def has_dali() -> bool:
    """Return whether DALI is installed."""
    return importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None


def measure(settings: LoadingSettings) -> Iterator[Row]:
    """Yield one row per loader and number of workers."""
    sides: list[Side] = [("torch", n) for n in settings.workers]
    if has_dali():
        sides += [("dali", n) for n in settings.workers if n]
    else:
        print("dali      is not installed, its rows are left out: pip install -e '.[dali]'")
    with tempfile.TemporaryDirectory() as folder:
        sample_images.write(sample_images.Settings(Path(folder), settings.per_class, settings.side))
        data = datasets.load(DataOptions(dataset="imagefolder", data_dir=str(folder), image_size=settings.image_size))
        (seconds,) = launch(on_rank, 1, data, sides, settings, device=settings.device)
    for name, n in sides:
        taken = seconds[str((name, n))]
        row = {"loader": name, "workers": n, "device": settings.device}
        yield row | figure("images_per_s", settings.batch_size / taken) | ratio(seconds[str(sides[0])], taken)


if __name__ == "__main__":
    sys.exit(main(__doc__, LoadingSettings, measure))
