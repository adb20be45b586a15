"""The harness of the benchmarks: options, sides that take turns, medians with quartiles, the table, the kept file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch.distributed as dist

from experiments.grid import made_by
from gradwire.baselines.ring_all_reduce_builtin import join
from gradwire.core.records.atomic import check_writable_by, write_atomically
from gradwire.core.records.errors import UsageError
from gradwire.core.records.machine import machine
from gradwire.core.transports.base import Transport

Row = dict[str, Any]
Seconds = dict[str, np.ndarray]  # of each side's blocks
Measure = Callable[[Any], Iterator[Row]]


@dataclass(frozen=True)
class Settings:
    """The options that every benchmark has."""

    repeats: int = 15
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    out: Path | None = None
    """Keep the figures in this file (JSON), with the hardware, the versions, the commit and the options."""

    least: ClassVar[Mapping[str, float]] = {}
    """The least value of each option for which it is not 1."""

    def check(self) -> None:
        """Raise UsageError if a number is too small, or if several values are none, or not different."""
        for name, value in vars(self).items():
            values, least = value if isinstance(value, tuple) else (value,), self.least.get(name, 1)
            require(len(set(values)) == len(values) > 0, f"--{name}: give at least one value, and each once")
            numbers = [number for number in values if type(number) in (int, float)]
            require(all(number >= least for number in numbers), f"--{name}: must be at least {least:g}")


@dataclass(frozen=True)
class StepSettings(Settings):
    """Options of benchmarks whose blocks are steps."""

    repeats: int = 9
    steps: int = 5
    """Steps of each worker in a block."""
    batch_size: int = 64
    """Samples per worker and step."""


def require(condition: bool, message: str) -> None:
    """Raise UsageError(message) unless `condition`."""
    if not condition:
        raise UsageError(message)


def run(description: str, settings: Settings, measure: Measure) -> None:
    """Print the rows that `measure` yields, and write them. Raises UsageError, RunFailed.

    The first paragraph of `description` is the claim. A key NAME_quartiles of a row is the spread of NAME.
    """
    settings.check()
    if settings.out:
        check_writable_by("out", settings.out.parent)
    on = machine()
    print("claim    ", " ".join(description.split("\n\n")[0].split()))
    print(f"hardware  {on['cpu']}, {on['cores']} cores, torch {on['torch']}")
    print(f"n         {settings.repeats} repeats of alternating blocks; median (quartiles)", flush=True)
    rows = list(measure(settings))
    print(table(rows))
    if settings.out:
        options = {name: value for name, value in asdict(settings).items() if not isinstance(value, Path | None)}
        kept = {**made_by(), "options": options, "rows": rows}
        with write_atomically(settings.out) as path:
            path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text, a figure and its quartiles in one cell."""

    def short(value: object) -> str:
        return str(value) if not isinstance(value, float) else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"

    def cell(row: Row, name: str) -> str:
        quartiles = row.get(f"{name}_quartiles")
        return short(row[name]) + (" ({}..{})".format(*map(short, quartiles)) if quartiles else "")

    cells = [{name: cell(row, name) for name in row if not name.endswith("_quartiles")} for row in rows]
    return pd.DataFrame(cells).to_string(index=False)


def figures(**columns: Sequence[float] | np.ndarray) -> Row:
    """Return each column's values as NAME: their median, NAME_quartiles.

    Of ratios: of those of the repeats, whose median need not be the ratio of the medians.
    """
    row: Row = {}
    for name, values in columns.items():
        low, middle, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
        row |= {name: middle, f"{name}_quartiles": [low, high]}
    return row


def in_turns(sides: Mapping[str, Callable[[], float]], repeats: int) -> Seconds:
    """Call each side `repeats` times, in turns; return the seconds that they return.

    The first side of one repeat is the last of the next, so that none always follows the same other.
    """
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            seconds[name].append(sides[name]())
        names.append(names.pop(0))
    return {name: np.array(taken) for name, taken in seconds.items()}


def alternate(transport: Transport, sides: Mapping[str, Callable[[], object]], repeats: int) -> Seconds:
    """Run each side's block `repeats` times, in turns; return this rank's seconds. All ranks call it."""

    def timed(block: Callable[[], object]) -> float:
        transport.barrier()
        t0 = transport.now()
        block()
        return transport.now() - t0

    return in_turns({name: partial(timed, block) for name, block in sides.items()}, repeats)


def slowest(ranks: Sequence[Seconds]) -> Seconds:
    """Return for every side and repeat the seconds of the slowest rank."""
    return {name: np.max([seconds[name] for seconds in ranks], axis=0) for name in ranks[0]}


@contextmanager
def gloo(transport: Transport) -> Iterator[None]:
    """In the block, torch.distributed with gloo connects the ranks of `transport`, on a port that is free."""
    join(transport, "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
