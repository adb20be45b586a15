"""Draw which bandwidth is enough, published and ours: the picture of `bandwidths.py`."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from gradwire.core.records.atomic import write_atomically

COLOURS = {
    "data parallel": "#000000", "DiLoCo": "#d55e00", "streaming": "#e69f00", "overlapped": "#0072b2",
    "4 bits": "#009e73",
}  # fmt: skip


def draw(table: pd.DataFrame, out: Path) -> None:
    """Draw a panel for each model: Gbit/s by the percentage of time that is computing, a line for each method."""
    models = list(table["model"].unique())
    figure = Figure((10.5, 4.2), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
    for axes, model in zip(panels, models, strict=True):
        for method, of in table[table["model"] == model].groupby("method", sort=False):
            at, colour = range(len(of)), COLOURS[str(method)]
            axes.plot(at, of["gbit"], color=colour, lw=1.8, marker=".", ms=7, label=str(method))
            axes.plot(at, of["published_gbit"], "o", mfc="none", mec=colour, ms=10, mew=1.4)
            levels = [f"{percent} %" for percent in of["percent"]]
        axes.set(yscale="log", ylim=(0.2, 1200), title=f"{model} parameters", xlabel="of the time is computing")
        axes.set_xticks(range(len(levels)), labels=levels)
        axes.set_yticks([0.3, 1, 3, 10, 30, 100, 300, 1000], labels=["0.3", "1", "3", "10", "30", "100", "300", "1000"])
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("Gbit/s that are enough")
    panels[0].plot([], [], "o", mfc="none", mec="black", ms=10, mew=1.4, label="published")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    with write_atomically(out) as path:
        figure.savefig(path, dpi=120, format="png")
