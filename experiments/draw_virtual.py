"""Figures of the experiments in virtual time: the cluster, compression, the whole family, and it on text."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import drawing, virtual_cases
from experiments.drawing import WIDE, bars, finish, legend_below, line, lines, logarithmic, rate_of, sheet, stack
from experiments.simulated import ACCURACY, BITS, VIRTUAL, Rows, score_of
from experiments.text_cases import OF_SELDOM, OF_TEXT, WORKERS, at, networks_of
from experiments.virtual_cases import BOUNDS, EVERY, FEW, GBIT, LOCAL_STEPS, TUNED_AT, USUAL, Cluster, names_of
from gradwire.pictures.plot import notes_on_covered

COLOURS = {
    "ring": "#d55e00", "server": "#0072b2", "bound 1": "#009e73", "bound 8": "#cc79a7", "asynchronous": "#e69f00",
    "backup": "#56b4e9",
    "none": "#222222", "fp16": "#56b4e9", "bf16": "#0072b2", "blosc": "#999999", "topk": "#e69f00",
    "random_k": "#8a6d3b", "dgc": "#009e73", "qsgd": "#cc79a7", "sign": "#7b3294", "powersgd": "#d55e00",
    "ASGD": "#0072b2", "GD": "#e69f00", "DGC": "#009e73", "DGS": "#d55e00",
    virtual_cases.ONE_PROCESS: "#222222", virtual_cases.ONE_WORKER: "#999999",
}  # fmt: skip
_PARTS = {"computing": "#0072b2", "coding": "#e69f00", "network": "#c9c9c9"}  # of a step


def cluster(rows: Rows) -> Figure:
    """Draw speed-up and accuracy against workers, for each bandwidth."""
    figure, grid = sheet(6.4, 2, len(GBIT), WIDE, sharex=True, sharey="row")
    scaled = {name: COLOURS[name] for name in Cluster.scaled}
    for above, below, gbit in zip(*grid, GBIT, strict=True):
        runs = rows.of("scaling", gbit=gbit)
        limits = [runs["workers"].min(), runs["workers"].max()]
        above.plot(limits, limits, color="0.7", linewidth=1, label="as many times as workers")
        lines(above, runs, "workers", "speedup", scaled)
        lines(below, runs, "workers", "accuracy", scaled)
        for axes, of in ((above, "y"), (above, "x"), (below, "x")):
            logarithmic(axes, of, (1,), base=2)
        finish(above, f"{gbit} Gbit/s")
        finish(below, "", xlabel="workers")
    grid[0, 0].set_ylabel("times one worker alone")
    grid[1, 0].set_ylabel("held-out accuracy, %")
    facts = rows.facts
    figure.suptitle(
        f"{facts['model'].upper()} on {facts['train_size']:,} pictures of {facts['dataset'].replace('_', '-')}, "
        f"{facts['epochs']} epochs, {facts['batch_size']} samples a worker, {facts['compute']} a step of one worker, "
        f"latency {facts['latency']}", fontsize=9,
    )  # fmt: skip
    figure.draw_without_rendering()
    notes = notes_on_covered(grid.flat)
    for drawn in grid[0, 0].get_lines():
        label = str(drawn.get_label())
        drawn.set_label(f"{label} ({notes[label]})" if label in notes else label)
    legend_below(figure, grid[0, 0], 3)
    return figure


def slow(rows: Rows) -> Figure:
    """Draw the seconds on a cluster with equal workers and with one slow one."""
    figure, axes = sheet(3.4, width=8)
    means = bars(axes, rows.of("slow").set_index(["name", "slow"])["seconds"], dict(enumerate(drawing.PALE_AND_DARK)))
    axes.set_xticks(range(len(means)), list(means.index))
    finish(axes, "pale: equal workers; dark: the last worker 5 times as slow", "y", ylabel="virtual seconds")
    return figure


def prediction(rows: pd.DataFrame) -> Figure:
    """Draw predicted, simulated and measured seconds of a step, and how far they are apart."""
    figure, (left, right) = sheet(3.8, 1, 2, WIDE)
    measured, wall = rows["measured_ms"], rows["wall"] == "yes"
    left.plot(*[[measured.min() * 0.9, measured.max() * 1.1]] * 2, color="0.7", linewidth=1)
    left.plot(measured, rows["predicted_ms"], "o", color="#d55e00", ms=6, fillstyle="none", label="predicted")
    left.plot(measured, rows["simulated_ms"], ".", color="#0072b2", ms=5, label="simulated")
    error = 100 * (rows["simulated_ms"] / measured - 1)
    share = (rows["predicted_ms"] - rows["machine_ms"]).clip(lower=1e-3) / rows["machine_ms"]
    for here, colour, label in ((wall, "#0072b2", "the link is the wall"), (~wall, "0.6", "so are the two cores")):
        linked = here & (rows["strategy"] != "none")
        right.plot(share[linked], error[linked], "o", color=colour, ms=4, label=label)
    right.axhspan(-10, 10, color="0.93", zorder=0)
    finish(left, "", xscale="log", yscale="log", xlabel="measured, ms a step", ylabel="ms a step")
    finish(right, "", xscale="log", xlabel="time of the link / time of a step without a link")
    right.set_ylabel("simulated against measured, %")
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure


# Compression


def steps_of(codecs: Rows) -> pd.DataFrame:
    """Return what a step takes with each codec, in ms, a row for each name, workers and gbit: all, and its parts."""
    rows = codecs.of("time").set_index(["name", "workers", "gbit"])
    ms = rows[["seconds", "computed", "coded"]].div(rows["steps"], axis=0) * 1000
    ms.columns = pd.Index(["all", "computing", "coding"])
    return ms.assign(network=ms["all"] - ms["computing"] - ms["coding"])


def _at(rows: Rows, codecs: Rows, gbit: float) -> pd.DataFrame:
    """Return the rows of training, with the seconds of a bandwidth: of the codecs those of the timed steps."""
    final = rows.of("final", last=False, workers=TUNED_AT)
    if rows is codecs:
        ms = steps_of(codecs)["all"]
        return final.assign(seconds=final["steps"] * [ms[name, TUNED_AT, gbit] / 1000 for name in final["name"]])
    if gbit == USUAL:
        return final
    other = rows.of("bandwidth", last=False, workers=TUNED_AT, gbit=gbit)
    return pd.concat([other, final[final["name"] == virtual_cases.ONE_PROCESS]])  # which has no network


def curves(rows: Rows, codecs: Rows) -> Figure:
    """Draw the accuracy of codecs or methods against epochs, MB, seconds at each bandwidth, and at the end workers."""
    figure, grid = sheet(6.2, 2, 3, WIDE, sharey=True)
    usual, ends, title = _at(rows, codecs, USUAL), rows.of("final"), f"{TUNED_AT} workers"
    ends = ends[ends["name"] != virtual_cases.ONE_WORKER]
    panels = [("epoch", "epochs", title, usual), ("mb", "MB sent by all ranks", title, usual)]
    for gbit in codecs.of("time")["gbit"].unique():
        panels.append(("seconds", "virtual seconds", rate_of(gbit), _at(rows, codecs, gbit)))
    last, others = grid[0, 2], [*grid[0, :2], *grid[1]]
    for axes, (x, label, title, of) in zip(others, panels, strict=True):
        sent = of[of.groupby("name")[x].transform("max") > 0].assign(across=lambda table, x=x: table[x])  # for log axes
        means = sent.groupby(["name", "epoch"], sort=False, as_index=False)[["accuracy", "across"]].mean()
        lines(axes, means, "across", "accuracy", COLOURS, "epoch")
        if x != "epoch":
            logarithmic(axes)
        finish(axes, title, xlabel=label)
    lines(last, ends, "workers", "accuracy", COLOURS)
    finish(last, "at the end", xlabel="workers", xticks=sorted(ends["workers"].unique()))
    grid[0, 0].set_xticks(sorted(usual["epoch"].unique()))
    grid[0, 0].set_ylim(bottom=max(0.0, 100 * float(ends["accuracy"].min()) - 10))
    figure.supylabel("held-out accuracy, %", fontsize=10)
    legend_below(figure, grid[0, 0])
    return figure


def summary(codecs: Rows) -> Figure:
    """Draw for each codec what a step takes at each bandwidth, and the accuracy at the end: the README's picture."""
    ms = steps_of(codecs).xs(TUNED_AT, level="workers")
    names, bandwidths = list(ms.index.unique("name"))[::-1], list(ms.index.unique("gbit"))
    figure, (*grid, last) = sheet(4.1, 1, len(bandwidths) + 1, WIDE, sharey=True)
    figure.suptitle(f"A ring of {TUNED_AT} workers; dotted: a step without a codec", fontsize="medium")
    for axes, gbit in zip(grid, bandwidths, strict=True):
        of = ms.xs(gbit, level="gbit").reindex(names)
        stack(axes, of[list(_PARTS)], _PARTS, linewidth=0)
        axes.axvline(of.loc["none", "all"], color="0.3", linewidth=0.8, linestyle=":")
        finish(axes, rate_of(gbit), xlabel="ms a step")
    ends = codecs.of("final", workers=TUNED_AT).assign(accuracy=lambda table: 100 * table["accuracy"])
    means, reach = drawing.ranges(ends.set_index(["name", "question"])["accuracy"].loc[names])
    last.errorbar(means["final"], range(len(names)), xerr=reach[0], fmt="o", color="#222222", ms=4)
    finish(last, "held-out accuracy", xlabel="%")
    legend_below(figure, grid[0])
    return figure


# The whole family

OF_A_GROUP = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
_OF_FAMILY = {name: colour for group in EVERY.values() for name, colour in zip(group, OF_A_GROUP, strict=False)}
_GBIT = dict(zip(GBIT, ("#9ecae1", "#08519c"), strict=True))
_X = {"seconds": "seconds", "updates": "updates of a model", "mb": "MB sent by all ranks"}
_SCORES, _SCALE = {ACCURACY: "accuracy, %", BITS: "bits per character"}, {ACCURACY: 100, BITS: 1}
Panel = tuple[str, str, pd.DataFrame]  # a label, the column that it shows, and the rows


def family_curves(rows: Rows, where: str, workers: int | None = None, gbit: float | None = None) -> Figure:
    """Draw the accuracy after each epoch against seconds, updates and bytes: a row a group, the others in grey."""
    final = rows.of("final", last=False, where=where, workers=workers, gbit=gbit)
    labels = _X | ({"seconds": "virtual seconds"} if where == VIRTUAL else {})
    return by_group([(label, what, final) for what, label in labels.items()], names_of(where))


def by_group(panels: Sequence[Panel], shown: Sequence[str]) -> Figure:
    """Draw the score after each epoch in each of the panels: a row a group, the others in grey."""
    groups = {group: here for group, all_of in EVERY.items() if (here := [name for name in all_of if name in shown])}
    figure, grid = sheet(2.1 * len(groups), len(groups), len(panels), WIDE, sharex="col", sharey=True)
    for (group, members), row in zip(groups.items(), grid, strict=True):
        for axes, panel in zip(row, panels, strict=True):
            score = score_of(panel[2])
            drawn = across(panel).groupby(["name", "epoch"], as_index=False)[[score, "across"]].mean()
            for _, curve in drawn[~drawn["name"].isin(members)].groupby("name"):
                axes.plot(curve["across"], curve[score] * _SCALE[score], linewidth=1.2, color="0.85")
            lines(axes, drawn, "across", score, {name: _OF_FAMILY[name] for name in members}, "epoch")
            finish(axes, "", xscale="log")
        row[0].set_ylabel(_SCORES[score])
        aside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
        row[-1].legend(*row[0].get_legend_handles_labels(), title=group, alignment="left", **aside)
    for axes, (label, *_) in zip(grid[-1], panels, strict=True):
        axes.set_xlabel(label)
        low, high = axes.get_xlim()
        logarithmic(axes, marks=(1, 3) if high < 1000 * low else (1,))
    return figure


def across(panel: Panel) -> pd.DataFrame:
    """Return the rows of a panel with what it shows as `across`: without zeros, as its logarithm is drawn."""
    return panel[2].assign(across=panel[2][panel[1]])[lambda rows: rows["across"] > 0]


def family(rows: Rows) -> Figure:
    """Draw seconds as bars, and the accuracy as points, whose axis need not begin at 0, of all in virtual time."""
    figure, (left, right) = sheet(6.4, 1, 2, WIDE, sharey=True)
    runs = rows.of("final", where=VIRTUAL, workers=FEW).dropna(subset="accuracy").set_index(["name", "gbit"])
    runs = runs.loc[[name for name in names_of(VIRTUAL) if name in runs.index]]
    bars(left, runs["seconds"], _GBIT, horizontal=True)
    means, reach = drawing.ranges(100 * runs["accuracy"])
    for aside, gbit, across in zip((-0.2, 0.2), means, reach, strict=True):
        look = {"fmt": "o", "ms": 5, "elinewidth": 1.2, "capsize": 2, "color": _GBIT[gbit]}
        right.errorbar(means[gbit], np.arange(len(means)) + aside, xerr=across, **look)
    left.invert_yaxis()
    ends = np.cumsum([sum(name in means.index for name in members) for members in EVERY.values()])
    finish(left, "", "x", xlabel=f"virtual seconds of {rows.facts['epochs']} epochs")
    finish(right, "", "x", xlabel="held-out accuracy at their end, %")
    for axes, end in product((left, right), ends[ends < len(means)]):  # where one group ends and the next begins
        axes.axhline(end - 0.5, color="0.6", linewidth=0.6)
    figure.legend(left.containers[1::2], map(rate_of, means), loc="outside upper right", ncols=2, frameon=False)
    figure.suptitle(f"{FEW} workers, the same samples; means of three seeds, and their range", fontsize=10)
    return figure


def axis(rows: Rows) -> Figure:
    """Draw accuracy and seconds against the local steps between two averagings, and against the bound on staleness."""
    figure, (left, right) = sheet(3.6, 1, 2, WIDE)
    looks = {LOCAL_STEPS: ("#d55e00", "local SGD, H steps", 0), BOUNDS: ("#0072b2", "server, staleness bound s", 1)}
    for name, (colour, label, first) in looks.items():
        for gbit, style in zip(GBIT, ("--", "-"), strict=True):
            ends = rows.of("axis", name=name, gbit=gbit).assign(value=lambda rows, first=first: rows["value"] + first)
            line(right, ends, "value", "seconds", color=colour, linestyle=style, label=f"{label}, {gbit} Gbit/s")
        line(left, ends, "value", "accuracy", color=colour, label=label)
    for axes, label in ((left, f"held-out accuracy, %, {GBIT[-1]} Gbit/s"), (right, "virtual seconds")):
        logarithmic(axes, "x", (1,), base=2)
        finish(axes, "", xlabel="H, or s + 1", ylabel=label)
    left.legend(frameon=False)
    right.legend(frameon=False, fontsize=8, handlelength=3.6)
    return figure


# On text

_TOLD = ("server", "ring", "asynchronous", "DGS", "local SGD, every 5", "DiLoCo, every 10", "AD-PSGD")
_OF_TOLD = {virtual_cases.ONE_PROCESS: "0.6", **dict(zip(_TOLD, OF_A_GROUP, strict=True))}


def _text_panels(rows: Rows) -> list[Panel]:
    networks = networks_of(rows)
    usual = at(rows, networks[0], last=False)
    timed = [(f"s, {rate_of(gbit)}", "seconds", at(rows, gbit, last=False)) for gbit in networks]
    return [("epochs", "epoch", usual), ("MB sent", "mb", usual), *timed]


def _text_sheet(height: float, panels: Sequence[Panel], seeds: object) -> tuple[Figure, Any]:
    figure, grid = sheet(height, 1, len(panels), WIDE, sharey=True)
    grid[0].set_ylabel("held-out bits per character")
    figure.suptitle(f"GPT on text, {WORKERS} workers; means of {seeds} seeds, and their range", fontsize=10)
    return figure, grid


def text_curves(rows: Rows) -> Figure:
    """Draw bits per character after each epoch against epochs, bytes, and seconds at each bandwidth, by group."""
    return by_group(_text_panels(rows), list(OF_TEXT))


def text(rows: Rows) -> Figure:
    """Draw the same of some strategies: the README's picture."""
    panels = _text_panels(rows)
    figure, grid = _text_sheet(3.6, panels, "three")
    for axes, panel in zip(grid, panels, strict=True):
        lines(axes, across(panel), "across", BITS, _OF_TOLD, "epoch")
        finish(axes, "", xlabel=panel[0])
        if panel[1] != "epoch":
            logarithmic(axes)
    legend_below(figure, grid[0])
    return figure


_MARKED = zip((*OF_A_GROUP, "#8a6d3b", "#7b3294", "#e31a1c"), "soD^vPX<>*", strict=True)
_OF_SELDOM = dict(zip(OF_SELDOM, _MARKED, strict=True))


def seldom(rows: Rows) -> Figure:
    """Draw bits per character at the end against bytes and seconds, of those that talk seldom: a picture of docs/."""
    panels = _text_panels(rows)[1:]
    figure, grid = _text_sheet(4.2, panels, rows.of("final")["seed"].nunique())
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
    legend_below(figure, grid[0])
    return figure
