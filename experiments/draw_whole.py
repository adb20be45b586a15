"""Figures of the whole family."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.drawing import WIDE, bar, line, logarithmic, plain, sheet, whiskers
from experiments.simulated import REAL, VIRTUAL, Rows
from experiments.virtual_cases import BOUNDS, EVERY, FEW, GBIT, LOCAL_STEPS, names_of

_OF_A_GROUP = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
COLOURS = {name: colour for group in EVERY.values() for name, colour in zip(group, _OF_A_GROUP, strict=False)}
_GBIT = dict(zip(GBIT, ("#9ecae1", "#08519c"), strict=True))
_X = {"seconds": "seconds", "updates": "updates of a model", "mb": "MB sent by all ranks"}


def curves(rows: Rows, where: str, workers: int | None = None, gbit: int | None = None) -> Figure:
    """Draw the accuracy after each epoch against seconds, updates and bytes: a row a group, the others in grey."""
    shown = names_of(where)
    groups = {group: here for group, all_of in EVERY.items() if (here := [name for name in all_of if name in shown])}
    figure, grid = sheet(2.1 * len(groups), len(groups), len(_X), WIDE, sharex="col", sharey=True)
    final = rows.of("final", last=False, where=where, workers=workers, gbit=gbit)
    means = final.groupby(["name", "epoch"])[["accuracy", *_X]].mean()
    for (group, members), panels in zip(groups.items(), grid, strict=True):
        for axes, what in zip(panels, _X, strict=True):
            for name in [*(name for name in shown if name not in members), *members]:
                one = means.loc[name]
                one = one[one[what] > 0]  # a logarithm is to be drawn
                look: dict[str, Any] = {"color": "0.85"}
                if name in members:
                    look = {"color": COLOURS[name], "zorder": 3, "marker": "o", "ms": 3, "label": name}
                axes.plot(one[what], 100 * one["accuracy"], linewidth=1.2, **look)
            axes.set_xscale("log")
            axes.grid(color="0.93")
        panels[0].set_ylabel("accuracy, %")
        panels[-1].legend(title=group, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, alignment="left")
    for axes, label in zip(grid[-1], _X.values(), strict=True):
        axes.set_xlabel("virtual seconds" if where == VIRTUAL and label == "seconds" else label)
        low, high = axes.get_xlim()
        logarithmic(axes.xaxis, (1, 3) if high < 1000 * low else (1,))
    return figure


def _bars_and_points(rows_of: dict[str, tuple[str, pd.DataFrame]], height: float) -> Figure:
    """Draw seconds as bars, and the accuracy as points, whose axis need not begin at 0: two of each strategy.

    `rows_of`: by label, a colour and the last rows of the runs.
    """
    figure, (left, right) = sheet(height, 1, 2, WIDE, sharey=True)
    shown = names_of(VIRTUAL)
    for offset, (label, (colour, rows)) in zip((-0.2, 0.2), rows_of.items(), strict=True):
        left.barh(0, 0, color=colour, label=label)
        for i, name in enumerate(shown):
            one = rows[rows["name"] == name]
            seconds, accuracy = one["seconds"].dropna(), 100 * one["accuracy"].dropna()
            if len(seconds):
                error = {"xerr": whiskers(seconds), "error_kw": {"linewidth": 0.8}}
                left.barh(i + offset, seconds.mean(), 0.38, color=colour, **error)
            if len(accuracy):
                at = accuracy.mean(), i + offset
                right.errorbar(*at, xerr=whiskers(accuracy), fmt="o", ms=5, elinewidth=1.2, capsize=2, color=colour)
    left.set_yticks(range(len(shown)), shown)
    left.invert_yaxis()
    ends = [sum(name in shown for name in members) for members in EVERY.values()]
    for axes in (left, right):
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        for i in range(1, len(ends)):
            if ends[i]:  # where one group ends and the next begins
                axes.axhline(sum(ends[:i]) - 0.5, color="0.6", linewidth=0.6)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def summary(rows: Rows, workers: int = FEW) -> Figure:
    """Draw seconds and accuracy of every strategy in virtual time, at both bandwidths."""
    ends = rows.of("final", where=VIRTUAL, workers=workers)
    figure = _bars_and_points({f"{gbit} Gbit/s": (_GBIT[gbit], ends[ends["gbit"] == gbit]) for gbit in GBIT}, 6.4)
    figure.axes[0].set_xlabel(f"virtual seconds of {rows.facts['epochs']} epochs")
    figure.axes[1].set_xlabel("held-out accuracy at their end, %")
    figure.suptitle(f"{workers} workers, the same samples; means of three seeds, and their range", fontsize=10)
    return figure


def slow(rows: Rows) -> Figure:
    """Draw virtual seconds and accuracy with equal workers and with one that computes five times as slowly."""
    usual = rows.of("final", where=VIRTUAL, workers=FEW, gbit=GBIT[-1])
    slowed = ("#c25b4e", rows.of("slow"))
    figure = _bars_and_points({"equal workers": ("0.75", usual), "the last one 5 times as slow": slowed}, 5.6)
    figure.axes[0].set_xlabel(f"virtual seconds, {FEW} workers, {GBIT[-1]} Gbit/s")
    figure.axes[1].set_xlabel("held-out accuracy, %")
    return figure


def axis(rows: Rows) -> Figure:
    """Draw accuracy and seconds against the local steps between two averagings, and against the bound on staleness."""
    figure, (left, right) = sheet(3.6, 1, 2, WIDE)
    fast = GBIT[-1]
    for name, colour, label in (
        (LOCAL_STEPS, "#d55e00", "local SGD, H steps"), (BOUNDS, "#0072b2", "server, staleness bound s"),
    ):  # fmt: skip
        ends = rows.of("axis", name=name)
        ends = ends.assign(value=ends["value"] + (name == BOUNDS))
        line(left, ends[ends["gbit"] == fast], "value", "accuracy", color=colour, label=label)
        for gbit in GBIT:
            seconds = ends[ends["gbit"] == gbit].groupby("value")["seconds"].mean()
            style = {"color": colour, "marker": "o", "ms": 4, "linestyle": "-" if gbit == fast else "--"}
            right.plot(seconds, label=f"{label}, {gbit} Gbit/s", **style)
    for axes, label in ((left, f"held-out accuracy, %, {fast} Gbit/s"), (right, "virtual seconds")):
        axes.set_xscale("log", base=2)
        plain(axes.xaxis)
        axes.set(xlabel="H, or s + 1", ylabel=label)
        axes.grid(color="0.9")
    left.legend(frameon=False)
    right.legend(frameon=False, fontsize=8, handlelength=3.6)
    return figure


def distances(rows: Rows) -> Figure:
    """Draw how far the ranks' models are from their mean at the end of each epoch, relative to its length."""
    figure, grid = sheet(3.4, 1, 2, WIDE, sharey=True)
    shown: dict[str, dict[str, Any]] = {
        "real, 4 ranks": {"where": REAL},
        f"virtual time, {FEW} workers": {"where": VIRTUAL, "workers": FEW, "gbit": GBIT[-1]},
    }
    for axes, (title, chosen) in zip(grid, shown.items(), strict=True):
        drifting = rows.of("final", last=False, **chosen).dropna(subset="replica_distance")
        for (name, one), colour in zip(drifting.groupby("name", sort=False), _OF_A_GROUP, strict=False):
            of = one.groupby("epoch")["replica_distance"].mean()
            axes.plot(of, color=colour, marker="o", ms=4, label=name)
        axes.set_xticks(sorted(drifting["epoch"].unique()))
        axes.set(xlabel="epochs", title=title, yscale="log")
        axes.grid(color="0.9")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    grid[0].set_ylabel("distance / length of the mean")
    return figure


def meters(rows: Rows) -> Figure:
    """Draw the updates that Hogwild has lost, and which part of the time of the overlapped buckets was in the pass."""
    figure, (left, right) = sheet(3.2, 1, 2, WIDE)
    _bars(left, rows.of("lost", last=False, where=REAL), ["workers"], "lost_updates", ["#7b3294"])
    left.set_xlabel("ranks of Hogwild, on the cores of this machine")
    left.set_ylabel("lost, % of what was written")
    ring = rows.of("final", where=VIRTUAL, name="overlapped ring")
    _bars(right, ring, ["workers", "gbit"], "hidden_communication", list(_GBIT.values()))
    right.set_ylabel("of the buckets' time, in the backward pass, %")
    return figure


def _bars(axes: Axes, rows: pd.DataFrame, by: list[str], what: str, colours: list[str]) -> None:
    """Draw a bar for each value of `by`: the mean of `what` in %, and its range."""
    groups = list(rows.groupby(by))
    for i, (_, one) in enumerate(groups):
        bar(axes, i, 100 * one[what], colours[i % len(colours)], 0.6)
    labels = [f"{key[0]} workers\n{key[1]:g} Gbit/s" if len(key) > 1 else str(key[0]) for key, _ in groups]
    axes.set_xticks(range(len(labels)), labels)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
