"""Draw which all-reduce is the fastest for so many bytes and ranks: the map of `winners.py`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from gradwire.core.records.atomic import write_atomically

COLOURS = {
    "all_gather": "#f0e442", "naive_all_reduce": "#999999", "recursive_doubling": "#e69f00",
    "halving_doubling": "#56b4e9", "swing": "#cc79a7", "double_tree": "#009e73", "ring_all_reduce": "#0072b2",
    "hierarchical_ring": "#d55e00",
}  # fmt: skip
UNITS = {2**10: "1 KiB", 2**14: "16 KiB", 2**18: "256 KiB", 2**22: "4 MiB", 2**26: "64 MiB"}
Borders = Sequence[tuple[int, float]]  # the ranks and bytes of each
_CROSS: Any = {"marker": "X", "s": 34, "facecolors": "white", "edgecolors": "black", "lw": 0.7}


def draw(table: pd.DataFrame, missed: "pd.Series[bool]", borders: Mapping[str, Borders], out: Path) -> None:
    """Draw a panel for each network of the table. `missed`: where the closed forms choose another."""
    figure = Figure((10.5, 4.4), layout="constrained")
    panels = figure.subplots(1, len(borders), squeeze=False)[0]
    for axes, (name, of_network) in zip(panels, borders.items(), strict=True):
        at = table["network"] == name
        _map(axes, table[at], table[at & missed], of_network)
        axes.set_title(f"{name}\nclosed forms right: {100 * (~missed[at]).mean():.1f} % of {at.sum()}", fontsize=10)
    for name in table["fastest"].unique():
        axes.bar(0, 0, color=COLOURS[name], label=name)
    axes.plot([], [], color="black", lw=2, label="border by the closed forms")
    axes.scatter([], [], label="they choose another", **_CROSS)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    with write_atomically(out) as path:
        figure.savefig(path, dpi=120, format="png")


def _map(axes: Axes, of: pd.DataFrame, missed: pd.DataFrame, borders: Borders) -> None:
    codes = of["fastest"].map(list(COLOURS).index)
    won = of.assign(code=codes).pivot(index="ranks", columns="bytes", values="code")
    ranks, sizes = list(won.index), won.columns.to_numpy(float)
    edges = np.append(sizes, 2 * sizes[-1]) / np.sqrt(2)
    rows, colours = np.arange(len(ranks) + 1) - 0.5, ListedColormap(list(COLOURS.values()))
    axes.pcolormesh(edges, rows, won.to_numpy(), cmap=colours, vmin=-0.5, vmax=len(COLOURS) - 0.5)
    for N, nbytes in borders:
        axes.vlines(nbytes, ranks.index(N) - 0.5, ranks.index(N) + 0.5, color="black", lw=2)
    axes.scatter(missed["bytes"], missed["ranks"].map(ranks.index), zorder=3, **_CROSS)
    axes.set(xscale="log", xlabel="bytes of the vector", ylabel="ranks N", xlim=(edges[0], edges[-1]))
    axes.set_xticks(list(UNITS), labels=list(UNITS.values()), fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(ranks)), labels=ranks, fontsize=8)
