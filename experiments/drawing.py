"""What all figures share: names, colours, lines with bands, bars with whiskers. Means over seeds, and their range."""

import zlib
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from experiments.cases import Setup
from records.legends import DASHED

NAMES = {
    "single": "one process",
    "param_server": "parameter server",
    "param_server_builtin": "DataParallel (built-in)",
    "ring_all_reduce": "ring all-reduce",
    "ring_all_reduce_builtin": "DDP (built-in)",
    "naive_all_reduce": "naive all-reduce",
    "none": "none (no communication)",
    "sync": "synchronous",
    "backup": "1 backup worker",
    "bounded": "staleness bound 2",
    "async": "asynchronous",
    "downpour": "Downpour, every 4",
}
COLOURS = {
    "single": "#222222", "param_server": "#c25b4e", "param_server_builtin": "#8c6bb1", "ring_all_reduce": "#3b6ea5",
    "ring_all_reduce_builtin": "#d9903d", "naive_all_reduce": "#5a9e6f", "none": "#999999",
    "sync": "#c25b4e", "backup": "#d9903d", "bounded": "#8c6bb1", "async": "#3b6ea5", "downpour": "#5a9e6f",
}  # fmt: skip
_OTHERS = (
    "#2a9d8f", "#b5609b", "#8a6d3b", "#a3b18a", "#4f5d75", "#e0719e", "#7a3b2e", "#17becf", "#bcbd22", "#6a3d9a",
)  # fmt: skip
WIDTH, WIDE = 9.0, 10.0  # inches; at 100 dpi the first is the width of a README


def name_of(strategy: str) -> str:
    """Return how a strategy is called; without an entry in NAMES, by its own name in words."""
    return NAMES.get(strategy, strategy.rpartition(":")[2].replace("_", " "))


def colour_of(strategy: str) -> str:
    """Return the colour of a strategy; without an entry in COLOURS, always the same one of some others."""
    return COLOURS.get(strategy, _OTHERS[zlib.crc32(strategy.encode()) % len(_OTHERS)])


def ranks_of(setup: Setup) -> str:
    """Return how many processes a setup has, in words."""
    return "1 process" if len(setup.roles) == 1 else f"{len(setup.roles)} ranks"


def title_of(setup: Setup) -> str:
    """Return how a setup is called in a legend."""
    return name_of(setup.strategy) + ("" if setup.strategy == "single" else f", {ranks_of(setup)}")


def line(axes: Axes, rows: pd.DataFrame, x: str, y: str, by: str | None = None, **style: Any) -> None:
    """Draw the mean of `y` against the mean of `x` for each value of `by` (default: x), and its range as a band."""
    scale, alpha = (100 if y == "accuracy" else 1), style.get("alpha", 1.0)
    groups = rows.groupby(by or x)
    values = groups[y].agg(["mean", "min", "max"]) * scale
    across = groups[x].mean() if by else values.index
    look: dict[str, Any] = {"marker": "o", "ms": 4} | style
    axes.plot(across, values["mean"], **look)
    axes.fill_between(across, values["min"], values["max"], color=style["color"], alpha=0.15 * alpha, lw=0)


def whiskers(values: pd.Series) -> list[list[float]]:
    """Return how far the range of some values reaches to both sides of their mean."""
    mean = values.mean()
    return [[max(0.0, mean - values.min())], [max(0.0, values.max() - mean)]]  # rounding may leave equal ones unequal


def bar(axes: Axes, place: float, values: pd.Series, colour: str, width: float = 0.38, **style: Any) -> None:
    """Draw the mean as a bar, its range as a whisker."""
    axes.bar(place, values.mean(), width, color=colour, **style)
    axes.errorbar(place, values.mean(), whiskers(values), color="#222222", capsize=2, lw=1)


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """Put the legend of some axes below all of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    options: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5, **DASHED}
    figure.legend(handles, labels, ncols=min(columns, len(labels)), **options)


def finish(axes: Axes, label: str, title: str, **grid: Any) -> None:
    """Label the x axis, and draw a grid below all else."""
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10)
    axes.grid(**{"color": "0.9"} | grid)
    axes.set_axisbelow(True)


def logarithmic(axis: Axis, marks: Sequence[float] = (1, 3)) -> None:
    """Mark 1, 3, 10, 30 and so on of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=marks))
    plain(axis)


def plain(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis as they are."""
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())
