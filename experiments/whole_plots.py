"""The pictures and tables of the whole family."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from experiments.collect import spread
from experiments.whole_family import (
    BOUNDS,
    CENTRAL,
    DECENTRAL,
    GBIT,
    LOCAL_STEPS,
    RATES,
    REAL,
    STRATEGIES,
    VIRTUAL,
    WORKERS,
    Whole,
    last_epochs,
    names,
)

_OF_A_GROUP = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
COLOURS = {
    name: colour for group in STRATEGIES.values() for name, colour in zip(group, _OF_A_GROUP, strict=False)
}  # fmt: skip
_GBIT = {1: "#9ecae1", 10: "#08519c"}
_AXES = {"seconds": "seconds", "updates": "updates of a model", "mb": "MB sent by all ranks"}
_WIDTH = 10.0
Table = list[tuple[str, ...]]


def _chosen(
    whole: Whole, question: str, where: str, workers: int | None = None, gbit: int | None = None
) -> pd.DataFrame:
    rows = whole.of(question, where)
    if workers is not None:
        rows = rows[rows["workers"] == workers]
    return rows if gbit is None else rows[rows["gbit"] == gbit]


def curves(whole: Whole, where: str, workers: int | None = None, gbit: int | None = None) -> Figure:
    """Draw the accuracy after each epoch against seconds, updates and bytes: a row a group, the others in grey."""
    rows = _chosen(whole, "final", where, workers, gbit)
    groups = {group: [name for name in members if name in names(where)] for group, members in STRATEGIES.items()}
    groups = {group: members for group, members in groups.items() if members}
    figure = Figure((_WIDTH, 2.1 * len(groups)), layout="constrained")
    grid = figure.subplots(len(groups), len(_AXES), sharex="col", sharey=True)
    means = rows.groupby(["name", "epoch"])[["accuracy", *_AXES]].mean()
    for (group, members), line in zip(groups.items(), grid, strict=True):
        for axes, what in zip(line, _AXES, strict=True):
            for name in [*(name for name in names(where) if name not in members), *members]:
                one = means.loc[name]
                one = one[one[what] > 0]  # a logarithm is to be drawn
                colour = COLOURS[name] if name in members else "0.85"
                front = {"zorder": 3, "marker": "o", "markersize": 3, "label": name} if name in members else {}
                axes.plot(one[what], 100 * one["accuracy"], color=colour, linewidth=1.2, **front)
            axes.set_xscale("log")
            axes.grid(color="0.93")
        line[0].set_ylabel("accuracy, %")
        line[-1].legend(title=group, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, alignment="left")
    for axes, label in zip(grid[-1], _AXES.values(), strict=True):
        virtual = "virtual " if where == VIRTUAL and label == "seconds" else ""
        axes.set_xlabel(virtual + label)
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high < 1000 * low else (1,)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    return figure


def _bars(axes: Axes, rows: pd.DataFrame, what: str, shown: list[str], offset: float, **style: Any) -> None:
    for i, name in enumerate(shown):
        values = rows.loc[rows["name"] == name, what].dropna()
        if len(values):
            middle = values.mean()
            error = [[max(0.0, middle - values.min())], [max(0.0, values.max() - middle)]]
            axes.barh(i + offset, middle, 0.38, xerr=error, error_kw={"linewidth": 0.8}, **style)
            style.pop("label", None)


def _points(axes: Axes, rows: pd.DataFrame, shown: list[str], offset: float, **style: Any) -> None:
    """Draw the accuracy as points with their ranges: their axis need not begin at 0."""
    for i, name in enumerate(shown):
        values = 100 * rows.loc[rows["name"] == name, "accuracy"].dropna()
        if len(values):
            middle = values.mean()
            error = [[max(0.0, middle - values.min())], [max(0.0, values.max() - middle)]]
            axes.errorbar(middle, i + offset, xerr=error, fmt="o", markersize=5, elinewidth=1.2, capsize=2, **style)


def summary(whole: Whole, workers: int = WORKERS[0]) -> Figure:
    """Seconds and accuracy of every strategy in virtual time, at both bandwidths."""
    ends = last_epochs(_chosen(whole, "final", VIRTUAL, workers))
    shown = names(VIRTUAL)
    figure = Figure((_WIDTH, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for offset, (gbit, colour) in zip((-0.2, 0.2), _GBIT.items(), strict=True):
        rows = ends[ends["gbit"] == gbit]
        _bars(left, rows, "seconds", shown, offset, color=colour, label=f"{gbit} Gbit/s")
        _points(right, rows, shown, offset, color=colour)
    left.set_yticks(range(len(shown)), shown)
    left.invert_yaxis()
    left.set_xlabel(f"virtual seconds of {whole.facts['epochs']} epochs")
    right.set_xlabel("held-out accuracy at their end, %")
    for axes in (left, right):
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        for edge in _edges():
            axes.axhline(edge, color="0.6", linewidth=0.6)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    figure.suptitle(f"{workers} workers, the same samples; means of three seeds, and their range", fontsize=10)
    return figure


def _edges() -> list[float]:
    """Return where one group ends and the next begins."""
    sizes = [sum(name in names(VIRTUAL) for name in members) for members in STRATEGIES.values()]
    return [sum(sizes[:i]) - 0.5 for i in range(1, len(sizes)) if sizes[i]]


def slow(whole: Whole) -> Figure:
    """Virtual seconds with equal workers and with one that computes five times as slowly, and its samples' worth."""
    fast = whole.of("slow")["gbit"].max()
    few = WORKERS[0]
    usual, slowed = last_epochs(_chosen(whole, "final", VIRTUAL, few, fast)), last_epochs(whole.of("slow"))
    shown = names(VIRTUAL)
    figure = Figure((_WIDTH, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for rows, offset, colour, label in (
        (usual, -0.2, "0.75", "equal workers"), (slowed, 0.2, "#c25b4e", "the last one 5 times as slow"),
    ):  # fmt: skip
        _bars(left, rows, "seconds", shown, offset, color=colour, label=label)
        _points(right, rows, shown, offset, color=colour)
    left.set_yticks(range(len(shown)), shown)
    left.invert_yaxis()
    left.set_xlabel(f"virtual seconds, {few} workers, {fast} Gbit/s")
    right.set_xlabel("held-out accuracy, %")
    for axes in (left, right):
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def axis(whole: Whole) -> Figure:
    """Accuracy and seconds against the local steps between two averagings, and against the bound on staleness."""
    ends = last_epochs(whole.of("axis"))
    figure = Figure((_WIDTH, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = {LOCAL_STEPS: "#d55e00", BOUNDS: "#0072b2"}
    fast = ends["gbit"].max()
    for name, rows in ends.groupby("name", sort=False):
        accuracy = rows[rows["gbit"] == fast].groupby("value")["accuracy"].agg(["mean", "min", "max"]) * 100
        places = accuracy.index + (1 if name == BOUNDS else 0)
        left.plot(
            places, accuracy["mean"], color=colours[str(name)], marker="o", markersize=4, label=_of_axis(str(name))
        )
        left.fill_between(places, accuracy["min"], accuracy["max"], color=colours[str(name)], alpha=0.15, linewidth=0)
        for gbit, of in rows.groupby("gbit"):
            seconds = of.groupby("value")["seconds"].mean()
            right.plot(
                seconds.index + (1 if name == BOUNDS else 0), seconds, color=colours[str(name)], marker="o",
                markersize=4, linestyle="-" if gbit == fast else "--", label=f"{_of_axis(str(name))}, {gbit} Gbit/s",
            )  # fmt: skip
    for axes, label in ((left, f"held-out accuracy, %, {fast} Gbit/s"), (right, "virtual seconds")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("H, or s + 1")
        axes.set_ylabel(label)
        axes.grid(color="0.9")
    left.legend(frameon=False)
    right.legend(frameon=False, fontsize=8)
    return figure


def _of_axis(name: str) -> str:
    return {LOCAL_STEPS: "local SGD, H steps", BOUNDS: "server, staleness bound s"}[name]


def distances(whole: Whole) -> Figure:
    """How far the models of the ranks are from their mean at the end of each epoch, relative to its length."""
    figure = Figure((_WIDTH, 3.4), layout="constrained")
    for axes, where in zip(figure.subplots(1, 2, sharey=True), (REAL, VIRTUAL), strict=True):
        workers = None if where == REAL else WORKERS[0]
        rows = _chosen(whole, "final", where, workers)
        rows = rows[(rows["gbit"] == rows["gbit"].max()) & rows["replica_distance"].notna()]
        for (name, one), colour in zip(rows.groupby("name", sort=False), _OF_A_GROUP, strict=False):
            of = one.groupby("epoch")["replica_distance"].mean()
            axes.plot(of.index, of, color=colour, marker="o", markersize=4, label=name)
        axes.set_xticks(sorted(rows["epoch"].unique()))
        axes.set_xlabel("epochs")
        axes.set_title("real, 4 ranks" if where == REAL else f"virtual time, {workers} workers")
        axes.set_yscale("log")
        axes.grid(color="0.9")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("distance / length of the mean")
    return figure


def meters(whole: Whole) -> Figure:
    """The updates that Hogwild has lost, and which part of the time of the overlapped buckets was in the pass."""
    figure = Figure((_WIDTH, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    lost = whole.of("lost", REAL).assign(percent=lambda rows: 100 * rows["lost_updates"])
    ranks = sorted(lost["workers"].unique())
    for i, n in enumerate(ranks):
        values = lost.loc[lost["workers"] == n, "percent"]
        error = [[values.mean() - values.min()], [values.max() - values.mean()]]
        left.bar(i, values.mean(), 0.6, yerr=error, color="#7b3294")
    left.set_xticks(range(len(ranks)), [str(n) for n in ranks])
    left.set_xlabel("ranks of Hogwild, on the cores of this machine")
    left.set_ylabel("lost, % of what was written")
    ends = last_epochs(whole.of("final"))
    hidden = ends[ends["name"] == "overlapped ring"].groupby(["workers", "gbit"])["hidden_communication"].mean()
    right.bar(range(len(hidden)), 100 * hidden, 0.6, color=[_GBIT[gbit] for _, gbit in hidden.index])
    right.set_xticks(range(len(hidden)), [f"{workers} workers\n{gbit} Gbit/s" for workers, gbit in hidden.index])
    right.set_ylabel("of the buckets' time, in the backward pass, %")
    for axes in (left, right):
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
    return figure


# Tables


def grid_table(whole: Whole, where: str) -> Table:
    """Return the accuracy of each learning rate, one seed; a star at the best."""
    rows = last_epochs(whole.of("grid", where))
    table: Table = [("strategy", "workers", *(f"{rate:g}" for rate in RATES))]
    for (name, workers), one in rows.groupby(["name", "workers"], sort=False):
        by_rate = one.set_index("lr")["accuracy"]
        best = by_rate.idxmax()
        cells = [
            "-" if pd.isna(by_rate.get(rate)) else f"{100 * by_rate[rate]:.1f}{'*' if rate == best else ' '}"
            for rate in RATES
        ]
        table.append((str(name), str(workers), *cells))
    return table


def final_table(whole: Whole, where: str, workers: int | None = None, gbit: int | None = None) -> Table:
    """Return what each strategy came to: mean ± standard deviation of the seeds."""
    rows = last_epochs(_chosen(whole, "final", where, workers, gbit))
    table: Table = [
        ("strategy", "rate", "accuracy, %", "seconds", "updates", "MB sent", "waited, % of the time", "staleness")
    ]
    for name, one in rows.groupby("name", sort=False):
        stale = "" if one["staleness"].isna().all() else f"{one['staleness'].mean():.1f}"
        table.append(
            (str(name), f"{one['lr'].iloc[0]:g}", spread(one["accuracy"], 2, 100), spread(one["seconds"], 2),
             f"{one['updates'].mean():.0f}", f"{one['mb'].mean():.0f}", f"{100 * one['waited'].mean():.0f}", stale)
        )  # fmt: skip
    return table


def two_by_two(whole: Whole, workers: int = WORKERS[0]) -> Table:
    """Return central and decentral, synchronous and asynchronous: accuracy, and seconds at both bandwidths."""
    ends = last_epochs(_chosen(whole, "final", VIRTUAL, workers))
    slowed = last_epochs(whole.of("slow"))

    def cell(name: str) -> str:
        one = ends[ends["name"] == name]
        seconds = one.groupby("gbit")["seconds"].mean()
        with_slow = slowed.loc[slowed["name"] == name, "seconds"].mean()
        times = ", ".join(f"{seconds[gbit]:.1f} s" for gbit in seconds.index)
        return f"{name}: {100 * one['accuracy'].mean():.1f} %; {times}; {with_slow:.1f} s"

    head = ("", *CENTRAL)
    return [head, ("a server", *map(cell, CENTRAL.values())), ("no server", *map(cell, DECENTRAL.values()))]


def lost_table(whole: Whole) -> Table:
    """Return which share of what Hogwild's ranks have written was lost, less what one rank, which loses none, shows."""
    rows = whole.of("lost", REAL)
    floor = rows.loc[rows["workers"] == 1, "lost_updates"].mean()
    table: Table = [("ranks", "lost, % of what was written", "less the rounding of one rank")]
    for workers, one in rows.groupby("workers"):
        table.append(
            (str(workers), spread(one["lost_updates"], 4, 100), f"{100 * (one['lost_updates'].mean() - floor):.4f}")
        )
    return table


def overlap_table(whole: Whole) -> Table:
    """Return which part of the buckets' time lay in the backward pass, and what that saved of the ring's own."""
    ends = last_epochs(whole.of("final"))
    table: Table = [
        ("workers", "Gbit/s", "in the pass, %", "seconds", "ring", "none", "of what the ring adds, saved, %")
    ]
    for (workers, gbit), one in ends.groupby(["workers", "gbit"]):
        seconds = one.groupby("name")["seconds"].mean()
        hidden = one.loc[one["name"] == "overlapped ring", "hidden_communication"].mean()
        ours, ring, none = seconds["overlapped ring"], seconds["ring"], seconds["none"]
        saved = f"{100 * (ring - ours) / (ring - none):.0f}"
        table.append(
            (str(workers), str(gbit), f"{100 * hidden:.0f}", f"{ours:.2f}", f"{ring:.2f}", f"{none:.2f}", saved)
        )
    return table


# Sentences made of the figures


def says(whole: Whole) -> str:
    """Return what the figures show, in numbers."""
    few, many = WORKERS
    ends = last_epochs(whole.of("final"))
    seconds = ends.groupby(["name", "workers", "gbit"])["seconds"].mean()
    accuracy = 100 * ends.groupby(["name", "workers"])["accuracy"].mean()
    best = {n: accuracy[:, n].idxmax() for n in (few, many)}
    slowed = last_epochs(whole.of("slow")).groupby("name", sort=False)["seconds"].mean()
    times = slowed / seconds[:, few, GBIT[-1]].reindex(slowed.index)
    spared, held_up = times[times < 1.2], times[times >= 1.2]
    return "\n".join(
        [
            f"- **The wall.** With {many} workers at 1 Gbit/s one server takes {seconds['server', many, 1]:.1f} "
            f"virtual seconds, four servers {seconds['4 servers', many, 1]:.1f}, the ring "
            f"{seconds['ring', many, 1]:.1f}, "
            f"gossip on the exponential graph {seconds['gossip, exponential', many, 1]:.1f}, AD-PSGD "
            f"{seconds['AD-PSGD', many, 1]:.1f}, no communication {seconds['none', many, 1]:.1f}.",
            f"- **Accuracy.** With {few} workers {best[few]} comes furthest ({accuracy[best[few], few]:.1f} %; the "
            f"ring {accuracy['ring', few]:.1f}, none {accuracy['none', few]:.1f}), with {many} {best[many]} "
            f"({accuracy[best[many], many]:.1f}; the ring {accuracy['ring', many]:.1f}, none "
            f"{accuracy['none', many]:.1f}).",
            f"- **One slow worker** of {few}, five times as slow, makes the run at most {spared.max():.2f} times as "
            f"long with these: {'; '.join(map(str, spared.index))}. With the others it takes {held_up.min():.1f} to "
            f"{held_up.max():.1f} times as long.",
        ]
    )
