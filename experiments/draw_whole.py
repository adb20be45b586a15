"""Figures of the whole family."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.drawing import PALE_AND_DARK, WIDE, bars, finish, line, lines, logarithmic, ranges, sheet
from experiments.simulated import REAL, VIRTUAL, Rows
from experiments.virtual_cases import BOUNDS, EVERY, FEW, GBIT, LOCAL_STEPS, names_of

_OF_A_GROUP = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
COLOURS = {name: colour for group in EVERY.values() for name, colour in zip(group, _OF_A_GROUP, strict=False)}
_GBIT = dict(zip(GBIT, ("#9ecae1", "#08519c"), strict=True))
_X = {"seconds": "seconds", "updates": "updates of a model", "mb": "MB sent by all ranks"}
_ASIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}  # of a legend


def curves(rows: Rows, where: str, workers: int | None = None, gbit: float | None = None) -> Figure:
    """Draw the accuracy after each epoch against seconds, updates and bytes: a row a group, the others in grey."""
    shown = names_of(where)
    groups = {group: here for group, all_of in EVERY.items() if (here := [name for name in all_of if name in shown])}
    figure, grid = sheet(2.1 * len(groups), len(groups), len(_X), WIDE, sharex="col", sharey=True)
    final = rows.of("final", last=False, where=where, workers=workers, gbit=gbit)
    means = final.groupby(["name", "epoch"], as_index=False)[["accuracy", *_X]].mean()
    for (group, members), panels in zip(groups.items(), grid, strict=True):
        for axes, what in zip(panels, _X, strict=True):
            drawn = means[means[what] > 0]  # a logarithm is to be drawn
            for _, one in drawn[~drawn["name"].isin(members)].groupby("name"):
                axes.plot(one[what], 100 * one["accuracy"], linewidth=1.2, color="0.85")
            lines(axes, drawn, what, "accuracy", {name: COLOURS[name] for name in members}, "epoch")
            finish(axes, "", xscale="log")
        panels[0].set_ylabel("accuracy, %")
        panels[-1].legend(*panels[0].get_legend_handles_labels(), title=group, alignment="left", **_ASIDE)
    for axes, label in zip(grid[-1], _X.values(), strict=True):
        axes.set_xlabel("virtual seconds" if where == VIRTUAL and label == "seconds" else label)
        low, high = axes.get_xlim()
        logarithmic(axes, marks=(1, 3) if high < 1000 * low else (1,))
    return figure


def _bars_and_points(runs: pd.DataFrame, by: str, colours: Mapping[Any, str], height: float) -> tuple[Figure, Any]:
    """Draw seconds as bars, and the accuracy as points, whose axis need not begin at 0; a colour for each of `by`."""
    figure, (left, right) = sheet(height, 1, 2, WIDE, sharey=True)
    runs = runs.dropna(subset=["seconds", "accuracy"]).set_index(["name", by])
    runs = runs.loc[[name for name in names_of(VIRTUAL) if name in runs.index]]
    bars(left, runs["seconds"], colours, horizontal=True)
    means, reach = ranges(100 * runs["accuracy"])
    for aside, label, across in zip((-0.2, 0.2), means, reach, strict=True):
        look = {"fmt": "o", "ms": 5, "elinewidth": 1.2, "capsize": 2, "color": colours[label]}
        right.errorbar(means[label], np.arange(len(means)) + aside, xerr=across, **look)
    left.invert_yaxis()
    ends = np.cumsum([sum(name in means.index for name in members) for members in EVERY.values()])
    for axes in (left, right):
        finish(axes, "", "x", ylabel="")
        for end in ends[ends < len(means)]:  # where one group ends and the next begins
            axes.axhline(end - 0.5, color="0.6", linewidth=0.6)
    figure.legend(left.containers[1::2], list(means), loc="outside upper right", ncols=2, frameon=False)
    return figure, (left, right)


def summary(rows: Rows, workers: int = FEW) -> Figure:
    """Draw seconds and accuracy of every strategy in virtual time, at both bandwidths."""
    ends = rows.of("final", where=VIRTUAL, workers=workers)
    ends = ends.assign(network=ends["gbit"].map("{:g} Gbit/s".format))
    colours = {f"{gbit} Gbit/s": colour for gbit, colour in _GBIT.items()}
    figure, (left, right) = _bars_and_points(ends, "network", colours, 6.4)
    left.set_xlabel(f"virtual seconds of {rows.facts['epochs']} epochs")
    right.set_xlabel("held-out accuracy at their end, %")
    figure.suptitle(f"{workers} workers, the same samples; means of three seeds, and their range", fontsize=10)
    return figure


def slow(rows: Rows) -> Figure:
    """Draw virtual seconds and accuracy with equal workers and with one that computes five times as slowly."""
    ends = rows.of("final", "slow", where=VIRTUAL, workers=FEW, gbit=GBIT[-1])
    colours = dict(zip(("equal workers", "the last one 5 times as slow"), PALE_AND_DARK, strict=True))
    ends = ends.assign(last=ends["question"].map(dict(zip(("final", "slow"), colours, strict=True))))
    figure, (left, right) = _bars_and_points(ends, "last", colours, 5.6)
    left.set_xlabel(f"virtual seconds, {FEW} workers, {GBIT[-1]} Gbit/s")
    right.set_xlabel("held-out accuracy, %")
    return figure


def axis(rows: Rows) -> Figure:
    """Draw accuracy and seconds against the local steps between two averagings, and against the bound on staleness."""
    figure, (left, right) = sheet(3.6, 1, 2, WIDE)
    for name, colour, label, first in (
        (LOCAL_STEPS, "#d55e00", "local SGD, H steps", 0), (BOUNDS, "#0072b2", "server, staleness bound s", 1),
    ):  # fmt: skip
        for gbit, style in zip(GBIT, ("--", "-"), strict=True):
            ends = rows.of("axis", name=name, gbit=gbit)
            ends = ends.assign(value=ends["value"] + first)
            line(right, ends, "value", "seconds", color=colour, linestyle=style, label=f"{label}, {gbit} Gbit/s")
        line(left, ends, "value", "accuracy", color=colour, label=label)
    for axes, label in ((left, f"held-out accuracy, %, {GBIT[-1]} Gbit/s"), (right, "virtual seconds")):
        logarithmic(axes, "x", (1,), base=2)
        finish(axes, "", xlabel="H, or s + 1", ylabel=label)
    left.legend(frameon=False)
    right.legend(frameon=False, fontsize=8, handlelength=3.6)
    return figure


def distances(rows: Rows) -> Figure:
    """Draw how far the ranks' models are from their mean at the end of each epoch, relative to its length."""
    figure, (left, right) = sheet(3.4, 1, 2, WIDE, sharey=True)
    chosen: dict[str, Any] = {"where": VIRTUAL, "workers": FEW, "gbit": GBIT[-1]}
    for axes, title, of in ((left, "real, 4 ranks", {"where": REAL}), (right, f"virtual time, {FEW} workers", chosen)):
        drifting = rows.of("final", last=False, **of).dropna(subset="replica_distance")
        colours = dict(zip(drifting["name"].unique(), _OF_A_GROUP, strict=False))
        lines(axes, drifting, "epoch", "replica_distance", colours)
        finish(axes, title, xlabel="epochs", xticks=sorted(drifting["epoch"].unique()), yscale="log")
        axes.legend(fontsize=8, **_ASIDE)
    left.set_ylabel("distance / length of the mean")
    return figure
