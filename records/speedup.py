"""The picture of a sweep: how many times as fast as one worker, against the number of workers."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from records.files import write_atomically
from records.plot import COLOURS, DASHES


def draw(frame: pd.DataFrame, others: Sequence[str], path: Path) -> None:
    """Draw `speedup` against `workers`, one line for each combination of the columns `others`. Raises OSError."""
    figure = Figure(figsize=(7, 4.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    names = list(others) or ["strategy"]
    workers = frame["workers"]
    limits = [workers.min(), workers.max()]
    axes.plot(limits, limits, color="0.6", linewidth=1, label="as many times as workers")
    firsts, rests = list(frame[names[0]].unique()), list(frame[names[1:]].drop_duplicates().itertuples(index=False))
    for values, line in frame.groupby(names, sort=False):
        line = line.sort_values("workers")
        colour = COLOURS[firsts.index(values[0]) % len(COLOURS)]
        dashes = DASHES[rests.index(tuple(values[1:])) % len(DASHES)] if rests else DASHES[0]
        label = ", ".join(str(value) for value in values)
        axes.plot(line["workers"], line["speedup"], dashes, color=colour, marker="o", markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers")
    axes.set_ylabel("times the samples/s of one worker alone")
    axes.set_title("Speed-up in virtual time")
    axes.grid(color="0.9")
    figure.legend(loc="outside right upper", title=", ".join(names), frameon=False, fontsize="small")
    with write_atomically(path) as unfinished:
        figure.savefig(unfinished, format="png")
