"""Held back by a network of 1 or 10 Gbit/s, overlapped_ring hides a part of what ring_all_reduce waits for; where
messages take hardly any time, it does not pay.

python benchmarks/overlap.py --n_gpus 2

Milliseconds of a step on random 28 x 28 pixels, of three strategies in the same processes, whose blocks alternate: none
(no communication), the ring, the overlapped ring. ratio is ring / overlapped, repeat by repeat; hidden is
(ring - overlapped) / (ring - none) of the medians, the share of the ring's communication that is hidden. Without a link
DistributedDataParallel, which overlaps too, is measured beside them.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, StepSettings, figures, main, require, slowest
from benchmarks.training import on_rank
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import Strategy
from strategies.all_reduce.overlapped_ring import OverlappedRing
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.local_models.none import NoCommunication
from training import launch
from transports.link import Link

LATENCY = 5e-5  # seconds


@dataclass(frozen=True)
class OverlapSettings(StepSettings):
    """Options of the benchmark of the overlapped ring."""

    repeats: int = 7
    n_gpus: int = 2
    """Number of processes."""
    gbit: tuple[float, ...] = (1.0, 10.0, 0.0)
    """Bandwidths, in Gbit/s; 0: shared memory as it is, and DDP beside it."""
    models: tuple[Literal["cnn", "mlp", "deep"], ...] = ("cnn", "mlp", "deep")
    """Which networks."""
    bucket_mb: float = 1.0
    """Megabytes of a bucket."""
    steps: int = 3

    least = {"n_gpus": 2, "gbit": 0, "bucket_mb": 0}

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(0 < self.bucket_mb <= 1e9, "--bucket_mb: must be above 0 and at most 1e9")


def measure(settings: OverlapSettings) -> Iterator[Row]:
    """Yield one row per network and bandwidth."""
    sides: dict[str, Strategy] = {
        "none": NoCommunication(), "ring": RingAllReduce(),
        "overlapped": OverlappedRing(bucket_mb=settings.bucket_mb), "ddp": BuiltinRingAllReduce(),
    }  # fmt: skip
    alike = [(sides["ring"].name, sides["overlapped"].name)]
    for model in settings.models:
        for gbit in settings.gbit:
            link = Link(gbit * 125e6, LATENCY) if gbit else None
            taking_part = {name: side for name, side in sides.items() if name != "ddp" or link is None}
            all_ranks = launch(on_rank, settings.n_gpus, [*taking_part.values()], alike, model, settings, link=link)
            seconds = slowest(all_ranks)
            ms = {name: 1e3 * seconds[side.name] / settings.steps for name, side in taking_part.items()}
            none, ring, overlapped = (float(np.median(ms[name])) for name in ("none", "ring", "overlapped"))
            row = {"model": model, "n_gpus": settings.n_gpus, "gbit": gbit or "shared memory"}
            row |= figures(**{f"{name}_ms": ms[name] for name in ("none", "ring", "overlapped")})
            row |= figures(ratio=ms["ring"] / ms["overlapped"]) | {"hidden": (ring - overlapped) / (ring - none)}
            of_ddp = {f"ddp_{name}": ms["ddp"] / ms[name] for name in ("ring", "overlapped") if "ddp" in ms}
            yield row | (figures(**of_ddp) or {"ddp_ring": "", "ddp_overlapped": ""})


if __name__ == "__main__":
    sys.exit(main(__doc__, OverlapSettings, measure))
