"""How many times as fast as gloo the backend gradwire is: its all-reduce, and DDP of an MLP, a CNN and the GPT.

python -m benchmarks backend --world_size 2 --sizes 1000 10000 1000000 16000000 --models mlp wide_mlp cnn gpt

Both backends have a group in the same processes, and take turns. `all_reduce` reduces one tensor again and again, as
DDP does its buckets; `fresh` a new tensor each time. A row of a model is a step of DDP with its optimizer; `share` is
the part of gloo's step that is not spent without communication (`no_sync`). Ratios: how many times as fast gradwire is.

The table of benchmarks/README.md has the figures of 2 and 4 ranks on 2 cores.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common
from benchmarks.all_reduce import calls_in_a_block
from benchmarks.common import Row, Seconds, alternate, figures, slowest
from benchmarks.networks import new_network
from gradwire import launch
from gradwire.backend.registration import NAME, register
from gradwire.baselines.ring_all_reduce_builtin import join
from gradwire.core.records.machine import usable_cores
from gradwire.core.transports.base import Transport
from gradwire.language.gpt import GPT

BACKENDS = ("gloo", NAME)
_STEPS = 5  # in a block


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the benchmark of the backend."""

    world_size: int = 2
    """Number of ranks."""
    sizes: tuple[int, ...] = (1000, 10_000, 1_000_000, 16_000_000)
    """Elements of the tensors that are reduced."""
    models: tuple[str, ...] = ("mlp", "wide_mlp", "cnn", "gpt")
    """Of DDP: mlp has 0.9 million parameters, wide_mlp 6.1 million."""

    least = {"world_size": 2}


def cnn() -> nn.Module:
    """Return a small CNN for images of 28 x 28 points."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(new_network, "mlp", width=600), "wide_mlp": partial(new_network, "mlp", width=2000), "cnn": cnn,
    "gpt": partial(GPT, (64,), 60),
}  # fmt: skip


def on_rank(transport: Transport, settings: Settings) -> dict[str, Seconds]:
    """Measure all on one rank: the seconds of each side's blocks."""
    register()
    join(transport, "gloo")
    groups: dict[str, Any] = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    taken: dict[str, Seconds] = {}
    for numel in settings.sizes:
        kept = {backend: torch.zeros(numel) for backend in BACKENDS}

        def reduce(backend: str, numel: int, fresh: bool, kept: dict[str, torch.Tensor] = kept) -> None:
            for _ in range(calls_in_a_block(numel)):
                dist.all_reduce(torch.zeros(numel) if fresh else kept[backend], group=groups[backend])

        sides = {
            f"{backend} {how}": partial(reduce, backend, numel, how == "fresh")
            for how in ("kept", "fresh") for backend in BACKENDS
        }  # fmt: skip
        taken[str(numel)] = alternate(transport, sides, settings.repeats)
    for name in settings.models:
        taken[name] = alternate(transport, steps_of(name, groups), settings.repeats)
    return taken


def steps_of(name: str, groups: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """Return what takes some steps of DDP: by each backend, and without communication."""
    sides: dict[str, Callable[[], None]] = {}
    for side, backend in ((BACKENDS[0], BACKENDS[0]), (NAME, NAME), ("alone", BACKENDS[0])):
        torch.manual_seed(0)
        model = DistributedDataParallel(MODELS[name](), process_group=groups[backend])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randint(0, 60, (4, 64)) if name == "gpt" else torch.randn(64, 784)
        sides[side] = partial(take_steps, model, optimizer, x, side == "alone")
        take_steps(model, optimizer, x, False)  # after which DDP has its buckets
    return sides


def take_steps(model: Any, optimizer: torch.optim.Optimizer, x: torch.Tensor, alone: bool) -> None:
    """Take some steps, or only compute them."""
    for _ in range(_STEPS):
        optimizer.zero_grad()
        with model.no_sync() if alone else nullcontext():
            model(x).square().mean().backward()
        optimizer.step()


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row per size and per model."""
    N = settings.world_size
    print(f"ranks     {N} processes, threads each: {max(1, len(usable_cores()) // N)}, bound to no core", flush=True)
    ranks = launch(on_rank, N, settings)
    for numel in settings.sizes:
        calls = calls_in_a_block(numel)
        us = {side: of / calls * 1e6 for side, of in slowest([rank[str(numel)] for rank in ranks]).items()}
        ratios = {f"{how}_ratio": us[f"gloo {how}"] / us[f"{NAME} {how}"] for how in ("kept", "fresh")}
        yield {"what": "all_reduce", "of": numel, **figures(gloo_us=us["gloo kept"], us=us[f"{NAME} kept"], **ratios)}
    for name in settings.models:
        us = {side: of / _STEPS * 1e6 for side, of in slowest([rank[name] for rank in ranks]).items()}
        shares = 1 - us["alone"] / us["gloo"]
        yield {"what": "DDP", "of": name,
               **figures(gloo_us=us["gloo"], us=us[NAME], kept_ratio=us["gloo"] / us[NAME], share=shares)}  # fmt: skip
