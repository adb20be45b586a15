"""Decoupled DiLoCo when learners fail: useful samples a second, against no failures, in virtual time.

python -m benchmarks goodput    # the table goes to results/; all runs: a minute on one core

The time between two failures of a learner is SECONDS on average: in a run of about that length each learner dies once,
at a random time, and comes back after the repair time. A learner takes a step in a second. The synchronous figure is no
run, for local SGD ends with a learner: all wait until whoever died is repaired, and begin again at the end of the last
round of local steps, where their checkpoint is. No learner dies again while it is late, which favours it.
"""

import random
import tempfile
from functools import cache
from typing import Any

import pandas as pd
import torch

from experiments.grid import KEPT, Grid
from gradwire import Options
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.simulate import simulate
from strategies import DecoupledDiLoCo

OUT = KEPT / "goodput.csv"
PAPER = "88 % decoupled, 58 % elastic data-parallel, with millions of chips (arXiv 2604.21428)"
LEARNERS, SECONDS, FRAGMENTS, EVERY = 8, 240, 4, 6  # a learner sends a fragment every 6 steps: H = 24
REPAIRS = 6.0, 12.0, 29.0, 48.0
SEEDS = range(5)
POINTS = [{"repair_s": repair, "seed": seed} for repair in REPAIRS for seed in SEEDS]


def data() -> tuple[torch.Tensor, ...]:
    """Return a sample for each step of each learner; their values do not matter."""
    y = torch.arange(LEARNERS * SECONDS) % 2
    x = torch.stack([y.float(), 1.0 - y], dim=1)
    return x, y, x[:2], y[:2]


def failures(repair: float, seed: int) -> tuple[float, ...]:
    """Return when each learner dies: at any time from which it is back before the end."""
    random_ = random.Random(seed)
    return tuple(round(random_.uniform(0, SECONDS - repair), 3) for _ in range(LEARNERS))


@cache
def decoupled(repair: float, deaths: tuple[float, ...]) -> float:
    """Return the virtual seconds until the samples are merged."""
    kill = tuple(f"{k}@{at}s-{at + repair}s" for k, at in enumerate(deaths, start=1))
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            strategy=DecoupledDiLoCo(local_steps=EVERY, fragments=FRAGMENTS, quorum=1), n_gpus=LEARNERS + 1,
            dataset=f"{__name__}:data", model="benchmarks.networks:mlp", model_options="width=2",
            batch_size=1, epochs=1, momentum=0.0, results_dir=folder,
        )  # fmt: skip
        return float(simulate(options, ClusterOptions(compute="1s", kill=kill), quiet=True).figures()["virtual_s"])


def synchronous(repair: float, deaths: tuple[float, ...]) -> float:
    """Return the seconds until all have taken their steps, if each waits for all."""
    done, now = 0.0, 0.0  # steps that are in a checkpoint; when all could compute again
    for at in sorted(deaths):
        done += max(at - now, 0.0) // (EVERY * FRAGMENTS) * EVERY * FRAGMENTS
        now = max(now, at + repair)
    return now + SECONDS - done


def compare(repair_s: float, seed: int) -> dict[str, Any]:
    """Return the row of one run."""
    deaths = failures(repair_s, seed)
    seconds = decoupled(repair_s, deaths)
    return {
        "repair_s": repair_s, "seed": seed, "learners_up": 100 * (1 - repair_s / seconds),
        "decoupled": 100 * decoupled(0.0, ()) / seconds, "synchronous": 100 * SECONDS / synchronous(repair_s, deaths),
    }  # fmt: skip


def summary(table: pd.DataFrame) -> str:
    """Return the mean of each repair time, and the lowest and the highest."""
    shown = table.groupby("repair_s")[["learners_up", "decoupled", "synchronous"]].agg(["mean", "min", "max"])
    return f"{shown.round(1).to_string()}\npublished: {PAPER}"


RUNS = Grid(OUT, POINTS, compare, lambda table: print(summary(table)))
