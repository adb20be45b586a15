"""The pictures of a sweep: how many times as fast as one worker, or the seconds of a step, against the workers."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from records.atomic import write_atomically
from records.plot import COLOURS, DASHED, DASHES


def draw(frame: pd.DataFrame, others: Sequence[str], path: Path, given: str = "") -> None:
    """Draw `speedup` against `workers`, or `seconds_a_step` if there is one, a line for each combination of `others`.

    Hollow where less than half of a step is `compute_s`. `others`: columns. `given`: what all runs have alike, for the
    title. Raises OSError.
    """
    figure = Figure(figsize=(7, 5.4), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_xlabel("workers")
    axes.grid(color="0.9")
    if "seconds_a_step" in frame:
        _lines(axes, frame, others, "seconds_a_step")
        waits = frame[frame["seconds_a_step"] > 2 * frame["compute_s"]]
        axes.plot(
            waits["workers"], waits["seconds_a_step"], "o", color="white", markeredgecolor="0.3", markersize=4,
            label="mostly waiting", zorder=4,
        )  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylabel("seconds a step")
    else:
        limits = [frame["workers"].min(), frame["workers"].max()]
        axes.plot(limits, limits, color="0.6", linewidth=1, label="as many times as workers")
        _lines(axes, frame, others, "speedup")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.set_ylabel("times the samples/s of one worker alone")
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    what = "A step" if "seconds_a_step" in frame else "Speed-up"
    axes.set_title("\n".join([f"{what} in virtual time", *textwrap.wrap(given, 80)]), fontsize=9)
    title = ", ".join(others or ["strategy"])
    figure.legend(loc="outside lower center", title=title, frameon=False, fontsize="small", ncols=2, **DASHED)
    with write_atomically(path) as unfinished:
        figure.savefig(unfinished, format="png")


def _lines(axes: Axes, frame: pd.DataFrame, others: Sequence[str], what: str) -> None:
    """Draw a line for each combination of the columns `others`: the first tells the colour, the rest the dashes.

    Lines that are the same within 1 % are one, with both names.
    """
    names = list(others) or ["strategy"]
    firsts, rests = list(frame[names[0]].unique()), list(frame[names[1:]].drop_duplicates().itertuples(index=False))
    drawn: list[tuple[tuple[str, ...], pd.Series, Line2D]] = []
    for values, line in frame.groupby(names, sort=False):
        rest, curve = tuple(values[1:]), line.set_index("workers")[what].sort_index()
        for other, like, same in drawn:
            if other == rest and like.index.equals(curve.index) and np.allclose(like, curve, rtol=0.01):
                first, comma, more = str(same.get_label()).partition(", ")
                same.set_label(f"{first} and {values[0]}{comma}{more}")
                break
        else:
            colour = COLOURS[firsts.index(values[0]) % len(COLOURS)]
            dashes = DASHES[rests.index(rest) % len(DASHES)] if rests else DASHES[0]
            label = ", ".join(str(value) for value in values)
            style: dict[str, Any] = {"color": colour, "linewidth": 1.5, "marker": "o", "markersize": 4}
            drawn += [(rest, curve, one) for one in axes.plot(curve.index, curve, dashes, label=label, **style)]
