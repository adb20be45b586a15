"""What the benchmarks share: options and output of a script, blocks that alternate, gloo beside our transport."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from torch import nn

from records.atomic import check_writable, write_atomically
from records.errors import RunFailed, UsageError
from records.machine import git_commit, machine
from ring_all_reduce_builtin import join
from strategies import Strategy
from transports.base import Transport

Row = dict[str, Any]
Seconds = dict[str, list[float]]  # of each side's blocks


@dataclass(frozen=True)
class Settings:
    """The options that every benchmark has."""

    repeats: int = 15
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    out: Path | None = None
    """Keep the figures in this file (JSON), with the hardware, the versions, the commit and the options."""

    def check(self) -> None:
        """Raise UsageError if there is nothing that could be measured."""
        require(self.repeats >= 1, "--repeats: must be at least 1")


S = TypeVar("S", bound=Settings)


def require(condition: bool, message: str) -> None:
    """Raise UsageError(message) unless `condition`."""
    if not condition:
        raise UsageError(message)


def main(
    description: str,
    kind: type[S],
    measure: Callable[[S], Iterator[Row]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run one benchmark from its command line; return the exit code: 0, 1 (failed) or 2 (usage).

    The first paragraph of `description` is the claim. What `measure` yields is printed and written; a key
    NAME_quartiles is the spread of NAME.
    """
    settings = tyro.cli(kind, description=description, args=arguments, use_underscores=True)
    try:
        settings.check()
        if settings.out:
            check_writable(settings.out.parent)
        on = machine()
        print("claim    ", " ".join(description.split("\n\n")[0].split()))
        print(f"hardware  {on['cpu']}, {on['cores']} cores, torch {on['torch']}")
        print(f"n         {settings.repeats} repeats of alternating blocks; median (quartiles)", flush=True)
        rows = list(measure(settings))
        print(table(rows))
        if settings.out:
            options = {name: value for name, value in asdict(settings).items() if name != "out"}
            kept = {"machine": on, "git_commit": git_commit(), "options": options, "rows": rows}
            with write_atomically(settings.out) as path:
                path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    except (UsageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text, a figure and its quartiles in one cell."""

    def short(value: object) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"

    def cell(row: Row, name: str) -> str:
        text = short(row[name])
        if f"{name}_quartiles" in row:
            text += " ({}..{})".format(*map(short, row[f"{name}_quartiles"]))
        return text

    return pd.DataFrame(
        [{name: cell(row, name) for name in row if not name.endswith("_quartiles")} for row in rows]
    ).to_string(index=False)


def figure(name: str, values: Sequence[float] | np.ndarray) -> Row:
    """Return `values` as {name: their median, name_quartiles}."""
    low, middle, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return {name: middle, f"{name}_quartiles": [low, high]}


def ratio(over: np.ndarray, under: np.ndarray) -> Row:
    """Return the median of the repeats' ratios, which need not be the ratio of the medians, and their quartiles."""
    return figure("ratio", over / under)


def alternate(transport: Transport, sides: Mapping[str, Callable[[], None]], repeats: int) -> Seconds:
    """Run each side's block `repeats` times, in turns; return this rank's seconds. All ranks call it.

    The first side of one repeat is the last of the next, so that none always follows the same other.
    """
    names = list(sides)
    seconds: Seconds = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            transport.barrier()
            t0 = transport.now()
            sides[name]()
            seconds[name].append(transport.now() - t0)
        names.append(names.pop(0))
    return seconds


def slowest(ranks: Sequence[Seconds]) -> dict[str, np.ndarray]:
    """Return for every side and repeat the seconds of the slowest rank."""
    return {name: np.max([seconds[name] for seconds in ranks], axis=0) for name in ranks[0]}


def train(
    strategy: Strategy, module: nn.Module, batch: Callable[[], tuple[torch.Tensor, torch.Tensor]], steps: int
) -> None:
    """Take `steps` steps as the training loop does, its phases recorded."""
    phase = strategy.transport.recorder.phase
    for _ in range(steps):
        with phase("data"):
            x, y = batch()
        with phase("forward"):
            loss = F.cross_entropy(module(x), y)
            loss.item()
        strategy.begin_step(len(x))
        with phase("backward"):
            loss.backward()
        strategy.step(len(x))
    strategy.transport.owes = ""  # steps are measured, and no end of an epoch


@contextmanager
def gloo(transport: Transport) -> Iterator[None]:
    """In the block, torch.distributed with gloo connects the ranks of `transport`, on a port that is free."""
    join(transport, "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
