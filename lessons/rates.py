"""The digits by a student's server: what a learning rate gives with more and more workers, and so with later gradients.

In virtual time, on pictures of digits, every worker with batches of the same size.
"""

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any

import pandas as pd
import torch

from gradwire.core.records.errors import RunFailed
from lessons.lab import counted
from lessons.not_waiting import Mine
from lessons.report import Report, Shown, new_picture
from lessons.training import NOT_TRAINED, accuracy_of, train_digits

EPOCHS, BATCH = 3, 8
WORKERS = (1, 4, 16)
RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
CHANCE = 0.1  # the accuracy of guessing one of ten digits
Serve = Callable[..., list[int]]
Rule = Callable[[float, int], float]


@dataclass(frozen=True)
class Trained:
    """The result of one run: the held-out accuracy, and the mean staleness.

    If the loss became infinite, the accuracy is that of guessing, and the staleness is unknown.
    """

    accuracy: float
    staleness: float | None

    def __str__(self) -> str:
        if self.staleness is None:
            return "the loss became infinite"
        return f"{100 * self.accuracy:.1f} % of the held-out pictures, mean staleness {self.staleness:.1f}"


def train(serve: Serve, workers: int, rate: float) -> Trained:
    """Train by a server and `workers` workers with one learning rate. Raises RunFailed."""
    late: list[int] = []

    def serve_all(*of_serve: Any) -> list[int]:
        late.extend(found := serve(*of_serve))
        return found

    mine = make_dataclass("Measured", [], bases=(Mine,), namespace={"serve_all": staticmethod(serve_all)}, kw_only=True)
    try:
        table, _ = train_digits(mine(), n_gpus=workers + 1, epochs=EPOCHS, batch_size=BATCH, lr=rate)
    except RunFailed as error:
        if "the loss" not in str(error):
            raise
        return Trained(CHANCE, None)
    return Trained(accuracy_of(table), torch.tensor(late).double().mean().item())


def count_staleness(report: Report, serve: Serve, workers: int) -> str:
    """Return, to one decimal, the mean staleness of workers of one pace."""
    if not report.right:
        return "nothing yet: the functions are not right"
    return f"{train(serve, workers, RATES[0]).staleness:.1f}"


def shrink(report: Report, serve: Serve, largest_rate: Rule, rate: float) -> str:
    """Return a table: a rate that is good for one worker, with more of them, and as much smaller as the rule says."""
    if not report.right:
        return NOT_TRAINED
    lines = []
    for workers, smaller in _shrunk(rate, largest_rate).items():
        for tried in dict.fromkeys((rate, smaller)):  # the same for one worker
            lines.append(f"{workers:2} workers, rate {tried:.4f}: {train(serve, workers, tried)}")
    return "\n".join(lines)


def _shrunk(rate: float, largest_rate: Rule) -> dict[int, float]:
    """Return by numbers of workers what becomes of a rate for one worker, as the rule says."""
    return {workers: rate * largest_rate(1.0, workers - 1) / largest_rate(1.0, 0) for workers in WORKERS}


def sweep(report: Report, serve: Serve, largest_rate: Rule, border: float) -> Shown | str:
    """Return a picture of accuracies by rate, a line for each number of workers, and where the rule sees the border.

    `border` is the rate that is just too large for one worker.
    """
    if not report.right:
        return NOT_TRAINED
    picture, axes = new_picture(
        xlabel="learning rate; dotted: where the rule sees the border", ylabel="accuracy, %", ylim=(0, 100)
    )
    found = pd.DataFrame(columns=pd.Index(RATES, name="rate"))
    for i, (workers, at) in enumerate(_shrunk(border, largest_rate).items()):
        found.loc[f"{workers} workers, %"] = [100 * train(serve, workers, rate).accuracy for rate in RATES]
        axes.semilogx(RATES, found.iloc[i], "o-", color=f"C{i}", label=counted(workers, "worker"))
        axes.axvline(at, color=f"C{i}", linestyle=":")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    axes.minorticks_off()
    picture.legend(frameon=False, loc="outside right upper")
    about = "Accuracy against the learning rate: with more workers it falls to guessing at smaller rates."
    return Shown(found.to_string(float_format="{:.1f}".format), picture, about)
