"""Asynchronous local SGD: worse than synchronous with an outer momentum, better without, and repaired by delaying it?

python -m benchmarks async_local_sgd    # the table goes to results/; all runs: minutes on one core

The setting is that of the paper's notebook (github.com/google-deepmind/asyncdiloco), in virtual time and smaller: there
512 features, 65,000 hidden units, 128,000 samples and 20 local steps, and each round has a new inner optimizer. All
variants take as many local steps; of each, the outer learning rate is the best of RATES.
"""

import functools
import math
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import nn

from experiments.grid import KEPT, Grid
from gradwire import Options
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.simulate import simulate
from strategies import Downpour, LocalSGD, Strategy

OUT = KEPT / "async_local_sgd.csv"
PAPER = """published (arXiv 2401.09135): with momentum asynchronous is worse than synchronous, without it better;
delayed Nesterov repairs it"""
PACES = 0.58, 0.75, 1.51, 3.33  # seconds a step of each worker
FEATURES, CLASSES, CLUSTERS, NOISE = 128, 4, 8, 0.5  # clusters of each class
N_TRAIN, N_TEST, HIDDEN, BATCH, H = 48_000, 4_000, 256, 32, 5
RATES = 0.1, 0.3, 1.0, 3.0, 6.0
SEEDS = range(3)

_synchronous = partial(LocalSGD, local_steps=H, outer_optimizer="nesterov")
_asynchronous = partial(Downpour, n_push=H, n_fetch=H)
VARIANTS: dict[str, Callable[..., Strategy]] = {
    "synchronous, no momentum": partial(_synchronous, outer_momentum=0.0),
    "asynchronous, no momentum": _asynchronous,
    "synchronous, Nesterov": partial(_synchronous, outer_momentum=0.9),
    "asynchronous, Nesterov": partial(_asynchronous, outer_momentum=0.9),
    "asynchronous, delayed Nesterov": partial(_asynchronous, outer_momentum=0.9, momentum_every=len(PACES)),
}
POINTS = [dict(zip(("variant", "outer_lr", "seed"), values, strict=True)) for values in product(VARIANTS, RATES, SEEDS)]


@functools.cache
def data() -> tuple[torch.Tensor, ...]:
    """Return a mixture of mixtures of Gaussians: classes of clusters, whose centres have length 1."""
    generator = torch.Generator().manual_seed(42)
    centres = nn.functional.normalize(torch.randn(CLASSES * CLUSTERS, FEATURES, generator=generator), dim=1)
    cluster = torch.randint(len(centres), (N_TRAIN + N_TEST,), generator=generator)
    x = torch.randn(len(cluster), FEATURES, generator=generator).mul_(NOISE).add_(centres[cluster])
    y = cluster // CLUSTERS
    return x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:]


def network(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return one hidden layer."""
    return nn.Sequential(nn.Linear(math.prod(input_shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_classes))


def compare(variant: str, outer_lr: float, seed: int) -> dict[str, Any]:
    """Return the row of one run."""
    strategy = VARIANTS[variant](outer_lr=outer_lr)
    n_gpus = len(PACES) + strategy.roles(len(PACES) + 1).count("server")
    slow = tuple(f"{n_gpus - len(PACES) + i}:{pace / PACES[0]}" for i, pace in enumerate(PACES) if i)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            strategy=strategy, n_gpus=n_gpus, dataset=f"{__name__}:data", model=f"{__name__}:network",
            batch_size=BATCH, epochs=1, seed=seed, slow=slow, results_dir=folder,
            optimizer="adamw", lr=1e-3, momentum=0.9, weight_decay=0.01, lr_schedule="cosine",
        )  # fmt: skip
        run = simulate(options, ClusterOptions(compute=f"{PACES[0]}s"), quiet=True)
    row = {"variant": variant, "outer_lr": outer_lr, "seed": seed, "virtual_s": run.figures()["virtual_s"]}
    return row | {"test_loss": float(run.table["test_loss"].dropna().iloc[-1])}


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of each variant with the outer learning rate of the least mean loss."""
    mean = table.groupby(["variant", "outer_lr"])["test_loss"].mean()
    rates = {variant: mean[variant].idxmin() for variant in VARIANTS}
    return table[table["outer_lr"] == table["variant"].map(rates)]


def summary(table: pd.DataFrame) -> str:
    """Return the mean loss of each variant and rate, and at its best rate the lowest and the highest over seeds."""
    shown = table.pivot_table("test_loss", "variant", "outer_lr", sort=False).loc[[*VARIANTS]]
    of = best(table).groupby("variant").agg({"test_loss": ["min", "max"], "virtual_s": "mean"})
    shown[["lowest", "highest", "virtual s"]] = of.to_numpy()[[of.index.get_loc(variant) for variant in VARIANTS]]
    return f"{shown.round(4).to_string()}\n{PAPER}"


RUNS = Grid(OUT, POINTS, compare, lambda table: print(summary(table)))
