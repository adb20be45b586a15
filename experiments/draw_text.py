"""Figures of the experiments on text: the whole family, and those that talk seldom."""

from typing import Any

from matplotlib.figure import Figure

from experiments import virtual_cases
from experiments.draw_virtual import OF_A_GROUP, Panel, across, by_group, rate_of
from experiments.drawing import WIDE, finish, legend_below, lines, logarithmic, sheet
from experiments.simulated import BITS, Rows
from experiments.text_cases import OF_SELDOM, OF_TEXT, WORKERS, at, networks_of

_TOLD = ("server", "ring", "asynchronous", "DGS", "local SGD, every 5", "DiLoCo, every 10", "AD-PSGD")
_OF_TOLD = {virtual_cases.ONE_PROCESS: "0.6", **dict(zip(_TOLD, OF_A_GROUP, strict=True))}


def _text_panels(rows: Rows) -> list[Panel]:
    networks = networks_of(rows)
    usual = at(rows, networks[0], last=False)
    timed = [(f"s, {rate_of(gbit)}", "seconds", at(rows, gbit, last=False)) for gbit in networks]
    return [("epochs", "epoch", usual), ("MB sent", "mb", usual), *timed]


def text_curves(rows: Rows) -> Figure:
    """Draw bits per character after each epoch against epochs, bytes, and seconds at each bandwidth, by group."""
    return by_group(_text_panels(rows), list(OF_TEXT))


def text(rows: Rows) -> Figure:
    """Draw the same of some strategies: the README's picture."""
    panels = _text_panels(rows)
    figure, grid = sheet(3.6, 1, len(panels), WIDE, sharey=True)
    for axes, panel in zip(grid, panels, strict=True):
        lines(axes, across(panel), "across", BITS, _OF_TOLD, "epoch")
        finish(axes, "", xlabel=panel[0])
        if panel[1] != "epoch":
            logarithmic(axes)
    grid[0].set_ylabel("held-out bits per character")
    figure.suptitle(f"GPT on text, {WORKERS} workers; means of three seeds, and their range", fontsize=10)
    legend_below(figure, grid[0])
    return figure


_OF_SELDOM = dict(
    zip(OF_SELDOM, zip((*OF_A_GROUP, "#8a6d3b", "#7b3294", "#e31a1c"), "soD^vPX<>*", strict=True), strict=True)
)


def seldom(rows: Rows) -> Figure:
    """Draw bits per character at the end against bytes and seconds, of those that talk seldom: a picture of docs/."""
    panels, n = _text_panels(rows)[1:], rows.of("final")["seed"].nunique()
    figure, grid = sheet(4.2, 1, len(panels), WIDE, sharey=True)
    for axes, (label, what, of) in zip(grid, panels, strict=True):
        ends = of[of["epoch"] == rows.facts["epochs"]].dropna(subset=BITS).groupby("name")
        table = ends[BITS].agg(["mean", "min", "max"]).assign(x=ends[what].mean())
        for name, (colour, marker) in _OF_SELDOM.items():
            if name in table.index:
                mean, low, high, x = table.loc[name]
                look: dict[str, Any] = {"color": colour, "fmt": marker, "ms": 7, "elinewidth": 1.2, "label": name}
                axes.errorbar(x, mean, yerr=[[mean - low], [high - mean]], **look)
        if what == "mb":
            logarithmic(axes)
        else:
            axes.set_xlim(left=0)
        finish(axes, "", xlabel=label.replace("s,", "virtual seconds,"))
    grid[0].set_ylabel("held-out bits per character")
    figure.suptitle(f"GPT on text, {WORKERS} workers; means of {n} seeds, and their range", fontsize=10)
    legend_below(figure, grid[0])
    return figure
