"""What all figures share: names, colours, lines with bands, bars with whiskers. Means over seeds, and their range."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from gradwire.core.records.atomic import write_atomically
from gradwire.pictures.plot import DASHED

NAMES = {
    "single": "one process", "param_server": "parameter server", "param_server_builtin": "DataParallel (built-in)",
    "ring_all_reduce": "ring all-reduce", "ring_all_reduce_builtin": "DDP (built-in)",
    "naive_all_reduce": "naive all-reduce", "none": "none (no communication)", "sync": "synchronous",
    "backup": "1 backup worker", "bounded": "staleness bound 2", "async": "asynchronous",
    "downpour": "Downpour, every 4",
}  # fmt: skip
COLOURS = {
    "single": "#222222", "param_server": "#c25b4e", "param_server_builtin": "#8c6bb1", "ring_all_reduce": "#3b6ea5",
    "ring_all_reduce_builtin": "#d9903d", "naive_all_reduce": "#5a9e6f", "none": "#999999",
    "sync": "#c25b4e", "backup": "#d9903d", "bounded": "#8c6bb1", "async": "#3b6ea5", "downpour": "#5a9e6f",
}  # fmt: skip
DASHES = {"param_server_builtin": "--", "ring_all_reduce_builtin": "--", "none": ":"}
"""Strategies that take the same steps lie on one another: dashes let both be seen."""
PALE_AND_DARK = ("0.75", "0.4")  # of equal workers, and with a slow one
WIDTH, WIDE = 9.0, 10.0  # inches; at 100 dpi the first is the width of a README


def sheet(height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **how: Any) -> tuple[Figure, Any]:
    """Return a figure and its panels, as `Figure.subplots` returns them."""
    figure = Figure((width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **how)


def rate_of(gbit: float) -> str:
    """Return a bandwidth as text."""
    return f"{gbit:g} Gbit/s" if gbit >= 1 else f"{1000 * gbit:g} Mbit/s"


def save(figure: Figure, path: Path, dpi: int = 100, **how: Any) -> None:
    """Write a picture, whole or not at all."""
    with write_atomically(path) as unfinished:
        figure.savefig(unfinished, dpi=dpi, **how)


def line(axes: Axes, rows: pd.DataFrame, x: str, y: str, by: str | None = None, **style: Any) -> None:
    """Draw the mean of `y` against the mean of `x` for each value of `by` (default: x), and its range as a band."""
    groups = rows.groupby(by or x)
    values = groups[y].agg(["mean", "min", "max"]) * (100 if y == "accuracy" else 1)
    across = groups[x].mean() if by else values.index
    look: dict[str, Any] = {"marker": "o", "ms": 4} | style
    axes.plot(across, values["mean"], **look)
    band = {"color": style["color"], "alpha": 0.15 * style.get("alpha", 1.0), "lw": 0}
    axes.fill_between(across, values["min"], values["max"], **band)


def lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, colours: Mapping[str, str], by: str | None = None, of: str = "name"
) -> None:
    """Draw a line for each of the names in the column `of` that have a colour, in their order."""
    named = of in ("server", "strategy")
    for name, colour in colours.items():
        if len(chosen := rows[rows[of] == name]):
            style = DASHES.get(name, "-") if named else "-"
            line(axes, chosen, x, y, by, color=colour, linestyle=style, label=NAMES[name] if named else name)


def ranges(samples: pd.Series) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the means of samples, a row for each value of the first level of their index, a column for the second.

    And how far the range of each reaches below and above: [columns, 2, rows].
    """
    of = samples.groupby(level=[0, 1], sort=False)
    mean, low, high = (values.unstack(sort=False) for values in (of.mean(), of.min(), of.max()))
    # Rounding may leave equal values unequal.
    return mean, np.stack([(mean - low).clip(lower=0).T, (high - mean).clip(lower=0).T], axis=1)


def bars(axes: Axes, samples: pd.Series, colours: Mapping[Any, str], horizontal: bool = False) -> pd.DataFrame:
    """Draw the `ranges` of samples, means as bars side by side and ranges as whiskers; return the means."""
    means, reach = ranges(samples)
    way: dict[str, Any] = {"kind": "barh", "xerr": reach} if horizontal else {"kind": "bar", "yerr": reach, "rot": 0}
    whiskers = {"ecolor": "#222222", "capsize": 2, "elinewidth": 1}
    means.plot(ax=axes, color=[colours[name] for name in means], width=0.8, legend=False, error_kw=whiskers, **way)
    axes.set(xlabel="", ylabel="")
    return means


def stack(axes: Axes, parts: pd.DataFrame, colours: Mapping[str, str], **style: Any) -> None:
    """Draw horizontal bars, one a row of `parts`, whose columns follow one another; without those that are 0."""
    shown = parts.loc[:, (parts != 0).any()]
    look = {"color": [colours[name] for name in shown], "edgecolor": "#bbbbbb", "legend": False} | style
    shown.plot.barh(ax=axes, stacked=True, width=0.7, **look)
    axes.set_ylabel("")


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """Put the legend of some axes below all of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    options: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5, **DASHED}
    figure.legend(handles, labels, ncols=min(columns, len(labels)), **options)


def finish(axes: Axes, title: str, grid: Literal["both", "x", "y"] = "both", **properties: Any) -> None:
    """Set the title and the properties of some axes, and draw a grid below all else."""
    axes.set_title(title, fontsize=10)
    axes.set(**properties)
    axes.grid(axis=grid, color="0.9")
    axes.set_axisbelow(True)


def logarithmic(axes: Axes, of: str = "x", marks: Sequence[float] | None = (1, 3), base: int = 10) -> None:
    """Make the x or y axis logarithmic, marked at 1, 3, 10, 30 and so on (None: as it comes), with plain numbers."""
    axis, scale = (axes.xaxis, axes.set_xscale) if of == "x" else (axes.yaxis, axes.set_yscale)
    scale("log", base=base)
    if marks:
        axis.set_major_locator(LogLocator(base, marks))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())
