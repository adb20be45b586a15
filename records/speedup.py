"""The pictures of a sweep: how many times as fast as one worker, or the seconds of a step, against the workers."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from records.files import write_atomically
from records.plot import COLOURS, DASHES


def draw_seconds(frame: pd.DataFrame, others: Sequence[str], path: Path) -> None:
    """Draw `seconds_a_step` against `workers`, a line for each combination of the columns `others`. Raises OSError.

    Hollow where less than half of the step is `compute_s`.
    """
    figure, axes = _axes()
    _lines(axes, frame, others, "seconds_a_step")
    waits = frame[frame["seconds_a_step"] > 2 * frame["compute_s"]]
    axes.plot(
        waits["workers"], waits["seconds_a_step"], "o", color="white", markeredgecolor="0.3", markersize=4.5,
        label="mostly waiting",
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("seconds a step")
    axes.set_title("A step in virtual time")
    _save(figure, others, path)


def draw(frame: pd.DataFrame, others: Sequence[str], path: Path) -> None:
    """Draw `speedup` against `workers`, one line for each combination of the columns `others`. Raises OSError."""
    figure, axes = _axes()
    limits = [frame["workers"].min(), frame["workers"].max()]
    axes.plot(limits, limits, color="0.6", linewidth=1, label="as many times as workers")
    _lines(axes, frame, others, "speedup")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_ylabel("times the samples/s of one worker alone")
    axes.set_title("Speed-up in virtual time")
    _save(figure, others, path)


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_xlabel("workers")
    axes.grid(color="0.9")
    return figure, axes


def _lines(axes: Axes, frame: pd.DataFrame, others: Sequence[str], what: str) -> None:
    """Draw a line for each combination of the columns `others`: the first tells the colour, the rest the dashes."""
    names = list(others) or ["strategy"]
    firsts, rests = list(frame[names[0]].unique()), list(frame[names[1:]].drop_duplicates().itertuples(index=False))
    for values, line in frame.groupby(names, sort=False):
        line = line.sort_values("workers")
        number = firsts.index(values[0])
        colour, width = COLOURS[number % len(COLOURS)], 1.3 + 0.8 * (len(firsts) - 1 - number)  # equal ones are seen
        dashes = DASHES[rests.index(tuple(values[1:])) % len(DASHES)] if rests else DASHES[0]
        label = ", ".join(str(value) for value in values)
        axes.plot(
            line["workers"], line[what], dashes, color=colour, linewidth=width, marker="o", markersize=2.5 + width,
            label=label,
        )  # fmt: skip


def _save(figure: Figure, others: Sequence[str], path: Path) -> None:
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        axis.set_minor_formatter(NullFormatter())
    title = ", ".join(others or ["strategy"])
    figure.legend(loc="outside right upper", title=title, frameon=False, fontsize="small")
    with write_atomically(path) as unfinished:
        figure.savefig(unfinished, format="png")
