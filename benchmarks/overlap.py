"""Held back by a network of 1 or 10 Gbit/s, overlapped_ring hides a part of what ring_all_reduce waits for; where
messages take hardly any time, it does not pay.

python benchmarks/overlap.py --n_gpus 2

Milliseconds of a step on random 28 x 28 pixels, of three strategies in the same processes, whose blocks alternate: none
(no communication), the ring, the overlapped ring. ratio is ring / overlapped, repeat by repeat; hidden is
(ring - overlapped) / (ring - none) of the medians, the share of the ring's communication that is hidden. Without a link
DistributedDataParallel, which overlaps too, is measured beside them.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import networks
from benchmarks.common import Row, Seconds, Settings, alternate, figure, main, ratio, require, slowest, train
from benchmarks.training import INPUT_SHAPE, N_CLASSES, new_batch, new_optimizer
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import Replica, Strategy
from strategies.all_reduce.overlapped_ring import OverlappedRing
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.common.builtin import Builtin
from strategies.local_models.none import NoCommunication
from training import launch
from transports.base import Transport
from transports.link import Link

MODELS = {"cnn": networks.cnn, "mlp": networks.mlp, "deep": networks.deep}
LATENCY = 5e-5  # seconds


@dataclass(frozen=True)
class OverlapSettings(Settings):
    """Options of the benchmark of the overlapped ring."""

    repeats: int = 7
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    n_gpus: int = 2
    """Number of processes."""
    gbit: tuple[float, ...] = (1.0, 10.0, 0.0)
    """Bandwidths, in Gbit/s; 0: shared memory as it is, and DDP beside it."""
    models: tuple[str, ...] = tuple(MODELS)
    """Which networks: cnn, mlp, deep."""
    bucket_mb: float = 1.0
    """Megabytes of a bucket."""
    steps: int = 3
    """Steps in a block."""
    batch_size: int = 64
    """Samples per worker and step."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(self.n_gpus >= 2, "--n_gpus: must be at least 2")
        require(self.steps >= 1, "--steps: must be at least 1")
        require(self.batch_size >= 1, "--batch_size: must be at least 1")
        require(0 < self.bucket_mb <= 1e9, "--bucket_mb: must be above 0 and at most 1e9")
        require(all(gbit >= 0 for gbit in self.gbit), "--gbit: must be 0 or positive numbers")
        require(set(self.models) <= set(MODELS), f"--models: there are {', '.join(MODELS)}")


def new_side(strategy: Strategy, transport: Transport, model: str, settings: OverlapSettings) -> Callable[[], None]:
    """Return a block of steps of one side, that has taken its first ones."""
    torch.manual_seed(0)
    module: nn.Module = MODELS[model](INPUT_SHAPE, N_CLASSES)
    if isinstance(strategy, Builtin):
        module = strategy.wrap(module, transport, settings.n_gpus, new_optimizer)
    else:
        strategy.start(Replica(module, transport), transport, new_optimizer)
    batch = new_batch(transport.rank, settings.batch_size)
    block = partial(train, strategy, module, lambda: batch, settings.steps)
    block()
    return block


def on_rank(transport: Transport, model: str, settings: OverlapSettings) -> Seconds:
    """Measure one network on one rank."""
    strategies: dict[str, Strategy] = {
        "none": NoCommunication(), "ring": RingAllReduce(), "overlapped": OverlappedRing(bucket_mb=settings.bucket_mb),
    }  # fmt: skip
    if transport.link is None:
        strategies["ddp"] = BuiltinRingAllReduce()
    sides = {name: new_side(strategy, transport, model, settings) for name, strategy in strategies.items()}
    same = [strategies[name].model() for name in ("ring", "overlapped")]
    torch.testing.assert_close(*same, rtol=1e-3, atol=1e-5)
    seconds = alternate(transport, sides, settings.repeats)
    if transport.link is None:
        ddp = strategies["ddp"]
        assert isinstance(ddp, Builtin)
        ddp.close()
    return seconds


def measure(settings: OverlapSettings) -> Iterator[Row]:
    """Yield one row per network and bandwidth."""
    for model in settings.models:
        for gbit in settings.gbit:
            link = Link(gbit * 125e6, LATENCY) if gbit else None
            seconds = slowest(launch(on_rank, settings.n_gpus, model, settings, link=link))
            ms = {name: 1e3 * of_side / settings.steps for name, of_side in seconds.items()}
            middle = {name: float(np.median(of_side)) for name, of_side in ms.items()}
            yield {
                "model": model,
                "n_gpus": settings.n_gpus,
                "gbit": gbit or "shared memory",
                **figure("none_ms", ms["none"]),
                **figure("ring_ms", ms["ring"]),
                **figure("overlapped_ms", ms["overlapped"]),
                **ratio(ms["ring"], ms["overlapped"]),
                "hidden": (middle["ring"] - middle["overlapped"]) / (middle["ring"] - middle["none"]),
                **(figure("ddp_ring", ms["ddp"] / ms["ring"]) if "ddp" in ms else {"ddp_ring": ""}),
                **(figure("ddp_overlapped", ms["ddp"] / ms["overlapped"]) if "ddp" in ms else {"ddp_overlapped": ""}),
            }


if __name__ == "__main__":
    sys.exit(main(__doc__, OverlapSettings, measure))
