"""Figures of the experiments in virtual time: the cluster, and compression."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.drawing import (
    PALE_AND_DARK,
    WIDE,
    bars,
    finish,
    legend_below,
    lines,
    logarithmic,
    ranges,
    sheet,
    stack,
)
from experiments.simulated import Rows
from experiments.virtual_cases import BY_DENSITY, GBIT, ONE_PROCESS, ONE_WORKER, TUNED_AT, USUAL, Cluster
from records.legends import notes_on_covered

COLOURS = {
    "ring": "#d55e00", "server": "#0072b2", "bound 1": "#009e73", "bound 8": "#cc79a7", "asynchronous": "#e69f00",
    "backup": "#56b4e9",
    "none": "#222222", "fp16": "#56b4e9", "bf16": "#0072b2", "blosc": "#999999", "topk": "#e69f00",
    "random_k": "#8a6d3b", "dgc": "#009e73", "qsgd": "#cc79a7", "sign": "#7b3294", "powersgd": "#d55e00",
    "ASGD": "#0072b2", "GD": "#e69f00", "DGC": "#009e73", "DGS": "#d55e00", ONE_PROCESS: "#222222",
    ONE_WORKER: "#999999",
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
        finish(above, f"{gbit} Gbit/s", ylabel="times one worker alone" if gbit == GBIT[0] else "")
        finish(below, "", xlabel="workers", ylabel="held-out accuracy, %" if gbit == GBIT[0] else "")
    facts = rows.facts
    figure.suptitle(
        f"{facts['model'].upper()} on {facts['train_size']:,} pictures of {facts['dataset'].replace('_', '-')}, "
        f"{facts['epochs']} epochs, {facts['batch_size']} samples a worker, {facts['compute']} a step of one worker, "
        f"latency {facts['latency']}", fontsize=9,
    )  # fmt: skip
    figure.draw_without_rendering()
    notes = notes_on_covered(grid.flat)
    for one in grid[0, 0].get_lines():
        label = str(one.get_label())
        one.set_label(f"{label} ({notes[label]})" if label in notes else label)
    legend_below(figure, grid[0, 0], 3)
    return figure


def slow(rows: Rows) -> Figure:
    """Draw the seconds on a cluster with equal workers and with one slow one."""
    figure, axes = sheet(3.4, width=8)
    means = bars(axes, rows.of("slow").set_index(["name", "slow"])["seconds"], dict(enumerate(PALE_AND_DARK)))
    axes.set_xticks(range(len(means)), list(means.index))
    finish(axes, "pale: equal workers; dark: the last worker 5 times as slow", "y", ylabel="virtual seconds")
    return figure


def prediction(rows: pd.DataFrame) -> Figure:
    """Draw predicted, simulated and measured seconds of a step, and how far they are apart."""
    figure, (left, right) = sheet(3.8, 1, 2, WIDE)
    measured, wall = rows["measured_ms"], rows["wall"] == "yes"
    limits = [measured.min() * 0.9, measured.max() * 1.1]
    left.plot(limits, limits, color="0.7", linewidth=1)
    left.plot(measured, rows["predicted_ms"], "o", color="#d55e00", ms=6, fillstyle="none", label="predicted")
    left.plot(measured, rows["simulated_ms"], ".", color="#0072b2", ms=5, label="simulated")
    error = 100 * (rows["simulated_ms"] / measured - 1)
    share = (rows["predicted_ms"] - rows["machine_ms"]).clip(lower=1e-3) / rows["machine_ms"]
    for here, colour, label in ((wall, "#0072b2", "the link is the wall"), (~wall, "0.6", "so are the two cores")):
        linked = here & (rows["strategy"] != "none")
        right.plot(share[linked], error[linked], "o", color=colour, ms=4, label=label)
    right.axhspan(-10, 10, color="0.93", zorder=0)
    finish(left, "", xscale="log", yscale="log", xlabel="measured, ms a step", ylabel="ms a step")
    xlabel = "time of the link / time of a step without a link"
    finish(right, "", xscale="log", xlabel=xlabel, ylabel="simulated against measured, %")
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure


# Compression


def steps_of(codecs: Rows, question: str = "time") -> pd.DataFrame:
    """Return what a step takes with each codec, in ms, a row for each name, workers and gbit: all, and its parts."""
    rows = codecs.of(question).set_index(["name", "workers", "gbit"])
    ms = rows[["seconds", "computed", "coded"]].div(rows["steps"], axis=0) * 1000
    ms.columns = pd.Index(["all", "computing", "coding"])
    return ms.assign(network=ms["all"] - ms["computing"] - ms["coding"])


def rate_of(gbit: float) -> str:
    """Return a bandwidth as text."""
    return f"{gbit:g} Gbit/s" if gbit >= 1 else f"{1000 * gbit:g} Mbit/s"


def _at(rows: Rows, codecs: Rows, gbit: float, workers: int) -> pd.DataFrame:
    """Return the rows of training, with the seconds of a bandwidth: of the codecs those of the timed steps."""
    final = rows.of("final", last=False, workers=workers)
    if rows is codecs:
        ms = steps_of(codecs)["all"]
        return final.assign(seconds=final["steps"] * [ms[name, workers, gbit] / 1000 for name in final["name"]])
    if gbit == USUAL:
        return final
    other = rows.of("bandwidth", last=False, workers=workers, gbit=gbit)
    return pd.concat([other, final[final["name"] == ONE_PROCESS]])  # which has no network


def curves(rows: Rows, codecs: Rows, workers: int = TUNED_AT) -> Figure:
    """Draw the accuracy against epochs, MB, seconds at each bandwidth, and at the end against workers.

    `rows`: those of the codecs, or of the methods.
    """
    figure, ((first, second, last), below) = sheet(6.2, 2, 3, WIDE, sharey=True)
    usual, ends = _at(rows, codecs, USUAL, workers), rows.of("final")
    seconds = [(axes, gbit) for axes, gbit in zip(below, codecs.of("time")["gbit"].unique(), strict=True)]
    panels = [(first, usual, "epoch", "epochs", f"{workers} workers"),
              (second, usual, "mb", "MB sent by all ranks", f"{workers} workers"),
              *((axes, _at(rows, codecs, gbit, workers), "seconds", "virtual seconds", rate_of(gbit))
                for axes, gbit in seconds)]  # fmt: skip
    for axes, of, x, label, title in panels:
        sent = of[of.groupby("name")[x].transform("max") > 0]  # a logarithm is to be drawn
        means = sent.groupby(["name", "epoch"], sort=False, as_index=False)[["accuracy", *{x} - {"epoch"}]].mean()
        lines(axes, means, x, "accuracy", COLOURS, "epoch")
        if x != "epoch":
            logarithmic(axes)
        finish(axes, title, xlabel=label)
    lines(last, ends[ends["name"] != ONE_WORKER], "workers", "accuracy", COLOURS)
    finish(last, "at the end", xlabel="workers", xticks=sorted(ends["workers"].unique()))
    first.set_xticks(sorted(usual["epoch"].unique()))
    for axes in (first, below[0]):
        axes.set_ylabel("held-out accuracy, %")
    first.set_ylim(bottom=max(0.0, 100 * float(ends["accuracy"].min()) - 10))
    legend_below(figure, first)
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
    ends = codecs.of("final", workers=TUNED_AT).assign(accuracy=lambda one: 100 * one["accuracy"])
    means, reach = ranges(ends.set_index(["name", "question"])["accuracy"].loc[names])
    last.errorbar(means["final"], range(len(names)), xerr=reach[0], fmt="o", color="#222222", ms=4)
    finish(last, "held-out accuracy", xlabel="%")
    legend_below(figure, grid[0])
    return figure


def by_density(methods: Rows) -> pd.DataFrame:
    """Return the last rows of GD and DGS at each density (`percent`), with MB a step."""
    rows = methods.of("density", "final", workers=TUNED_AT)
    rows = rows[rows["name"].isin(BY_DENSITY)].sort_values(["name", "density"], ascending=[False, True])
    return rows.assign(step_mb=rows["mb"] / rows["steps"], percent=100 * rows["density"])
