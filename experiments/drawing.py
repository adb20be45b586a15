"""What all figures share: names, colours, lines with bands, bars with whiskers. Means over seeds, and their range."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from experiments.cases import Setup
from records.plot import DASHED

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
WIDTH, WIDE = 9.0, 10.0  # inches; at 100 dpi the first is the width of a README


def title_of(setup: Setup) -> str:
    """Return how a setup is called in a legend."""
    return NAMES[setup.strategy] + ("" if setup.strategy == "single" else f", {setup.ranks}")


def sheet(height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **how: Any) -> tuple[Figure, Any]:
    """Return a figure and its panels, as `Figure.subplots` returns them."""
    figure = Figure((width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **how)


def panels(
    results: Any, height: float, rows: int, draw: Sequence[Callable[[Axes, Any], object]],
    legend_of: int | None = None, **how: Any,
) -> Figure:  # fmt: skip
    """Return a figure with a panel for each function of `draw`, and the legend of one of the panels below."""
    figure, grid = sheet(height, rows, len(draw) // rows, squeeze=False, **how)
    for axes, draw_panel in zip(grid.flat, draw, strict=True):
        draw_panel(axes, results)
    if legend_of is not None:
        legend_below(figure, figure.axes[legend_of])
    return figure


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
    for name, colour in colours.items():
        if len(one := rows[rows[of] == name]):
            line(axes, one, x, y, by, color=colour, label=NAMES[name] if of == "server" else name)


def whiskers(*samples: pd.Series) -> list[list[float]]:
    """Return how far the range of each sample reaches below and above its mean."""
    # Rounding may leave equal values unequal.
    below = [max(0.0, values.mean() - values.min()) for values in samples]
    return [below, [max(0.0, values.max() - values.mean()) for values in samples]]


def bar(axes: Axes, place: float, values: pd.Series, colour: str, width: float = 0.38, **style: Any) -> None:
    """Draw the mean as a bar, its range as a whisker."""
    axes.bar(place, values.mean(), width, color=colour, **style)
    axes.errorbar(place, values.mean(), whiskers(values), color="#222222", capsize=2, lw=1)


def pairs(axes: Axes, samples: Mapping[str, Sequence[pd.Series]], colours: Mapping[str, str]) -> None:
    """Draw two bars beside one another for each pair of samples, which has a name: the first one pale."""
    for place, (name, both) in enumerate(samples.items()):
        for values, side, strength in zip(both, (-0.2, 0.2), (0.45, 1.0), strict=True):
            bar(axes, place + side, values, colours[name], alpha=strength)


def stack(axes: Axes, parts: pd.DataFrame, colours: Mapping[str, str], **style: Any) -> None:
    """Draw horizontal bars, one a row of `parts`, whose columns follow one another; without those that are 0."""
    left = pd.Series(0.0, index=parts.index)
    for part, width in parts.loc[:, (parts != 0).any()].items():
        axes.barh(parts.index, width, left=left, color=colours[str(part)], label=str(part), **style)
        left = left + width


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
