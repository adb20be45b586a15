"""What all figures share: names, colours, lines with bands, bars with whiskers. Means over seeds, and their range."""

from collections.abc import Callable, Iterable, Sequence
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
WIDTH, WIDE = 9.0, 10.0  # inches; at 100 dpi the first is the width of a README


def ranks_of(setup: Setup) -> str:
    """Return how many processes a setup has, in words."""
    return "1 process" if len(setup.roles) == 1 else f"{len(setup.roles)} ranks"


def title_of(setup: Setup) -> str:
    """Return how a setup is called in a legend."""
    return NAMES[setup.strategy] + ("" if setup.strategy == "single" else f", {ranks_of(setup)}")


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
    scale, alpha = (100 if y == "accuracy" else 1), style.get("alpha", 1.0)
    groups = rows.groupby(by or x)
    values = groups[y].agg(["mean", "min", "max"]) * scale
    across = groups[x].mean() if by else values.index
    look: dict[str, Any] = {"marker": "o", "ms": 4} | style
    axes.plot(across, values["mean"], **look)
    axes.fill_between(across, values["min"], values["max"], color=style["color"], alpha=0.15 * alpha, lw=0)


def whiskers(*samples: pd.Series) -> list[list[float]]:
    """Return how far the range of each sample reaches below and above its mean."""
    # Rounding may leave equal values unequal.
    below = [max(0.0, values.mean() - values.min()) for values in samples]
    return [below, [max(0.0, values.max() - values.mean()) for values in samples]]


def bar(axes: Axes, place: float, values: pd.Series, colour: str, width: float = 0.38, **style: Any) -> None:
    """Draw the mean as a bar, its range as a whisker."""
    axes.bar(place, values.mean(), width, color=colour, **style)
    axes.errorbar(place, values.mean(), whiskers(values), color="#222222", capsize=2, lw=1)


def pairs(
    axes: Axes, samples: Iterable[tuple[pd.Series, pd.Series]], colours: Iterable[str], aside: float = 0.2,
    alpha: float = 0.45, width: float = 0.38,
) -> None:  # fmt: skip
    """Draw two bars beside one another for each pair of samples: the first one pale."""
    for place, (both, colour) in enumerate(zip(samples, colours, strict=True)):
        for values, side, strength in zip(both, (-aside, aside), (alpha, 1.0), strict=True):
            bar(axes, place + side, values, colour, width, alpha=strength)


def stack(axes: Axes, place: Any, parts: pd.DataFrame, colours: Sequence[str], **style: Any) -> None:
    """Draw horizontal bars at `place`, one a row of `parts`, whose columns follow one another."""
    left = pd.Series(0.0, index=parts.index)
    for (part, width), colour in zip(parts.items(), colours, strict=True):
        axes.barh(place, width, left=left, color=colour, label=str(part), **style)
        left = left + width


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """Put the legend of some axes below all of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    options: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5, **DASHED}
    figure.legend(handles, labels, ncols=min(columns, len(labels)), **options)


def entitle(axes: Axes, title: str, size: float = 10, **properties: Any) -> None:
    """Set the title of some axes, and their properties."""
    axes.set_title(title, fontsize=size)
    axes.set(**properties)


def finish(axes: Axes, label: str, title: str, **grid: Any) -> None:
    """Label the x axis, and draw a grid below all else."""
    entitle(axes, title, xlabel=label)
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
