"""Draw how far virtual time and the closed forms are from the kernel's network: what `accuracy.py` has kept.

python -m benchmarks draw_accuracy --figures results/HARDWARE/benchmarks/accuracy.json --out media/accuracy.png
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from benchmarks.accuracy import summary
from experiments import drawing
from gradwire.core.records.errors import UsageError, one_line

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
MARKERS = {10: ("o", -0.2), 100: ("s", 0.0), 1000: ("^", 0.2)}  # of Mbit/s; how far from the middle of a group
OTHER = "others, cnn at 100 Mbit/s"


@dataclass(frozen=True)
class Settings:
    """What is drawn, and where to."""

    figures: Path
    """The file that `python -m benchmarks accuracy --out FILE` has kept."""
    out: Path = Path("accuracy.png")
    """The picture."""


def main(settings: Settings) -> None:
    """Draw the picture. Raises UsageError."""
    try:
        kept = json.loads(settings.figures.read_text(encoding="utf-8"))
        rows = pd.DataFrame(kept["rows"])
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"--figures {settings.figures}: no figures of the benchmark ({one_line(error)})") from error
    counts = rows["strategy"].value_counts()
    often = [name for name in rows["strategy"].unique() if counts[name] > 3]
    rows["group"] = rows["strategy"].where(rows["strategy"].isin(often), OTHER)
    groups = list(rows["group"].unique())
    colours = dict(zip(groups, [*COLOURS, "#999999"], strict=False))
    figure, (left, right) = drawing.sheet(5, 1, 2, 10, width_ratios=(1, 1.1))
    _scatter(left, rows, colours)
    _errors(right, rows, groups, colours)
    figure.suptitle(f"A step on the kernel's network; {summary(kept['rows'])}", fontsize=10)
    drawing.save(figure, settings.out)


def _scatter(axes: Axes, rows: pd.DataFrame, colours: dict[str, str]) -> None:
    low, high = 0.7 * rows["measured_ms"].min(), 1.4 * rows["measured_ms"].max()
    axes.plot([low, high], [low, high], color="#bbbbbb", lw=1, zorder=0)
    for name, of in rows.groupby("group", sort=False):
        told = of.dropna(subset=["predicted_ms"])
        axes.scatter(told["measured_ms"], told["predicted_ms"], s=40, facecolors="none", edgecolors=colours[str(name)])
        axes.scatter(of["measured_ms"], of["simulated_ms"], s=8, color=colours[str(name)], label=name)
    axes.scatter([], [], s=8, color="#666666", label="dot: virtual time")
    axes.scatter([], [], s=40, facecolors="none", edgecolors="#666666", label="ring: closed form")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_xlabel("measured, ms a step")
    axes.set_ylabel("simulated or predicted, ms a step")
    axes.legend(fontsize=7, loc="upper left", frameon=False)


def _errors(axes: Axes, rows: pd.DataFrame, groups: list[str], colours: dict[str, str]) -> None:
    for mbit, (marker, aside) in MARKERS.items():
        of = rows[rows["mbit"] == mbit]
        places, edges = of["group"].map(groups.index) + aside, of["group"].map(colours)
        faces = edges.where(of["held_out"] != "no", "none")
        axes.scatter(of["error"], places, marker=marker, s=18, facecolors=faces, edgecolors=edges, lw=0.8)
        axes.scatter([], [], marker=marker, s=18, color="#666666", label=f"{mbit} Mbit/s")
    axes.scatter([], [], s=18, facecolors="none", edgecolors="#666666", label="hollow: calibrated on")
    axes.axvspan(-5, 5, color="#eeeeee", zorder=0)
    axes.axvline(0, color="#bbbbbb", lw=1, zorder=0)
    axes.set_yticks(range(len(groups)), labels=groups, fontsize=8)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("virtual time against measured, % (grey: 5 %)")
    figure = axes.figure
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=4, fontsize=7, frameon=False)
