"""The pictures and tables of compression."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from experiments.collect import spread
from experiments.compression import (
    BY_DENSITY,
    CODED,
    METHODS,
    MOMENTUM,
    NAMES,
    ON_A_SERVER,
    ONE_PROCESS,
    ONE_WORKER,
    PAPER,
    PAPER_ONE_PROCESS,
    TUNED_AT,
    USUAL,
    Compression,
    last_epochs,
)

COLOURS = {
    "none": "#222222", "fp16": "#56b4e9", "bf16": "#0072b2", "blosc": "#999999", "topk": "#e69f00",
    "random_k": "#8a6d3b", "dgc": "#009e73", "qsgd": "#cc79a7", "sign": "#7b3294", "powersgd": "#d55e00",
    "ASGD": "#0072b2", "GD": "#e69f00", "DGC": "#009e73", "DGS": "#d55e00", ONE_PROCESS: "#222222",
    ONE_WORKER: "#999999",
}  # fmt: skip
PARTS = {"computing": "#0072b2", "coding": "#e69f00", "network": "#c9c9c9"}
_WIDTH = 10.0
Table = list[tuple[str, ...]]


def rate_of(mbit: int) -> str:
    """Return a bandwidth as text."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def steps_of(results: Compression, question: str = "time") -> pd.DataFrame:
    """Return what a step takes with each codec, in ms, a row for each name, workers and mbit: all, and its parts."""
    rows = results.of(CODED, question).set_index(["name", "workers", "mbit"])
    ms = rows[["seconds", "computed", "coded"]].div(rows["steps"], axis=0) * 1000
    ms.columns = pd.Index(["all", "computing", "coding"])
    return ms.assign(network=ms["all"] - ms["computing"] - ms["coding"])


def at(results: Compression, file: str, mbit: int, workers: int) -> pd.DataFrame:
    """Return the rows of training, with the seconds of a bandwidth: of the codecs those of the timed steps."""
    final = results.of(file, "final")
    final = final[final["workers"] == workers]
    if file == CODED:
        ms = steps_of(results)["all"]
        each = [ms[name, workers, mbit] / 1000 for name in final["name"]]
        return final.assign(seconds=final["steps"] * each)
    if mbit == USUAL:
        return final
    other = results.of(file, "bandwidth")
    other = other[(other["workers"] == workers) & (other["mbit"] == mbit)]
    return pd.concat([other, final[final["name"] == ONE_PROCESS]])  # which has no network


# Pictures


def curves(results: Compression, file: str, workers: int = TUNED_AT) -> Figure:
    """Draw the accuracy against epochs, MB, seconds at each bandwidth, and at the end against workers."""
    figure = Figure((_WIDTH, 6.2), layout="constrained")
    (first, second, last), below = figure.subplots(2, 3, sharey=True)
    usual = at(results, file, USUAL, workers)
    _lines(first, usual, "epoch", "epochs", f"{workers} workers")
    _lines(second, usual, "mb", "MB sent by all ranks", f"{workers} workers", log=True)
    for axes, mbit in zip(below, results.of(CODED, "time")["mbit"].unique(), strict=True):
        _lines(axes, at(results, file, mbit, workers), "seconds", "virtual seconds", rate_of(mbit), log=True)
    ends = last_epochs(results.of(file, "final"))
    for name, rows in ends[ends["name"] != ONE_WORKER].groupby("name", sort=False):
        of = rows.groupby("workers")["accuracy"].agg(["mean", "min", "max"]) * 100
        last.plot(of.index, of["mean"], color=COLOURS[str(name)], marker="o", markersize=4)
        last.fill_between(of.index, of["min"], of["max"], color=COLOURS[str(name)], alpha=0.12, linewidth=0)
    last.set_xticks(sorted(ends.loc[ends["name"] != ONE_WORKER, "workers"].unique()))
    first.set_xticks(sorted(usual["epoch"].unique()))
    _finish(last, "workers", "at the end")
    for axes in (first, below[0]):
        axes.set_ylabel("held-out accuracy, %")
    lowest = 100 * float(ends["accuracy"].min())
    first.set_ylim(bottom=max(0.0, lowest - 10))
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def _lines(axes: Axes, rows: pd.DataFrame, x: str, label: str, title: str, log: bool = False) -> None:
    for name, one in rows.groupby("name", sort=False):
        of = one.groupby("epoch")[[x, "accuracy"]].mean() if x != "epoch" else one.groupby("epoch")[["accuracy"]].mean()
        of = of.reset_index()
        if of[x].min() > 0:
            axes.plot(of[x], 100 * of["accuracy"], color=COLOURS[str(name)], marker=".", label=str(name))
    if log:
        axes.set_xscale("log")
        _ticks(axes.xaxis)
    _finish(axes, label, title)


def _ticks(axis: Axis) -> None:
    """Mark 1, 3, 10, 30 and so on of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


def _finish(axes: Axes, label: str, title: str) -> None:
    axes.set_xlabel(label)
    axes.set_title(title, fontsize="medium")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def summary(results: Compression) -> Figure:
    """Draw for each codec what a step takes at each bandwidth, and the accuracy at the end: the README's picture."""
    ms = steps_of(results).xs(TUNED_AT, level="workers")
    names, bandwidths = list(NAMES[CODED])[::-1], list(dict.fromkeys(ms.index.get_level_values("mbit")))
    figure = Figure((_WIDTH, 4.1), layout="constrained")
    figure.suptitle(f"A ring of {TUNED_AT} workers; dotted: a step without a codec", fontsize="medium")
    *panels, last = figure.subplots(1, len(bandwidths) + 1, sharey=True)
    for axes, mbit in zip(panels, bandwidths, strict=True):
        of, left = ms.xs(mbit, level="mbit").reindex(names), pd.Series(0.0, index=names)
        for part, colour in PARTS.items():
            axes.barh(names, of[part], left=left, color=colour, label=part)
            left = left + of[part]
        axes.axvline(of.loc["none", "all"], color="0.3", linewidth=0.8, linestyle=":")
        _finish(axes, "ms a step", rate_of(mbit))
    ends = last_epochs(results.of(CODED, "final"))
    of = ends[ends["workers"] == TUNED_AT].groupby("name")["accuracy"].agg(["mean", "min", "max"]).reindex(names) * 100
    last.errorbar(of["mean"], names, xerr=_range(of), fmt="o", color="#222222", markersize=4)
    _finish(last, "%", "held-out accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _range(of: pd.DataFrame) -> list[Any]:
    return [(of["mean"] - of["min"]).clip(lower=0), (of["max"] - of["mean"]).clip(lower=0)]


def density(results: Compression) -> Figure:
    """Draw accuracy and MB a step against the density, of the methods that have one."""
    figure = Figure((7.5, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, rows in _by_density(results).groupby("name", sort=False):
        of = rows.assign(step_mb=rows["mb"] / rows["steps"]).groupby("density")
        accuracy = of["accuracy"].agg(["mean", "min", "max"]) * 100
        colour, x = COLOURS[str(name)], accuracy.index * 100
        left.errorbar(x, accuracy["mean"], yerr=_range(accuracy), color=colour, marker="o", markersize=4, capsize=3)
        right.plot(x, of["step_mb"].mean(), color=colour, marker="o", markersize=4, label=str(name))
    for axes, title in ((left, "held-out accuracy, %"), (right, "MB a step, all ranks")):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        _finish(axes, "density, %", title)
    right.set_yscale("log")
    _ticks(right.yaxis)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _by_density(results: Compression) -> pd.DataFrame:
    """Return the last rows of GD and DGS at each density, with TUNED_AT workers."""
    rows = pd.concat([results.of(METHODS, "density"), results.of(METHODS, "final")])
    return last_epochs(rows[rows["name"].isin(BY_DENSITY) & (rows["workers"] == TUNED_AT)]).sort_values("density")


# Tables, their heads first


def methods_table(rows: pd.DataFrame) -> Table:
    """Return the methods with each number of workers: mean ± standard deviation of the seeds."""
    table: Table = [("method", "workers", "rate", "accuracy, %", "MB a step", "codes", "staleness", "virtual seconds")]
    ends = last_epochs(rows[rows["question"] == "final"])
    for (name, workers), one in ends.groupby(["name", "workers"], sort=False):
        mb, code = (spread(one[column] / one["steps"], 3) for column in ("mb", "code_mb"))
        table.append(
            (str(name), str(workers), f"{one['lr'].iloc[0]:g}", spread(one["accuracy"], 2, 100), mb, code,
             spread(one["staleness"], 2), spread(one["seconds"], 2))
        )  # fmt: skip
    return table


def paper_table() -> Table:
    """Return the paper's own figures."""
    table: Table = [("method", "4 workers", "8", "16", "32")]
    table += [(name, *(f"{value:.2f}" for value in values)) for name, values in PAPER.items()]
    return [*table, (f"one process, m = {MOMENTUM}", f"{PAPER_ONE_PROCESS:.2f}", "", "", "")]


def codecs_table(results: Compression) -> Table:
    """Return accuracy and MB a step of each codec on the ring."""
    ends = last_epochs(results.of(CODED, "final"))
    ends = ends.assign(step_mb=ends["mb"] / ends["steps"])
    workers = sorted(ends["workers"].unique())
    first = [f"accuracy, %: {workers[0]} workers", *map(str, workers[1:])]
    table: Table = [("codec", "rate", *first, f"MB a step: {workers[0]} workers", *map(str, workers[1:]))]
    for name, one in ends.groupby("name", sort=False):
        by_workers = [one[one["workers"] == n] for n in workers]
        accuracy = [spread(of["accuracy"], 2, 100) for of in by_workers]
        mb = [f"{of['step_mb'].mean():.3f}" for of in by_workers]
        table.append((str(name), f"{one['lr'].iloc[0]:g}", *accuracy, *mb))
    return table


def times_table(results: Compression, question: str = "time") -> Table:
    """Return what encoding and a step take at each bandwidth: on the ring ("time"), or around a server ("server")."""
    ms, timed = steps_of(results, question).xs(TUNED_AT, level="workers"), results.facts[CODED]["phase_seconds"]
    bandwidths = list(dict.fromkeys(ms.index.get_level_values("mbit")))
    table: Table = [("codec", "ms to encode", "to decode", *(f"a step at {rate_of(mbit)}" for mbit in bandwidths))]
    for name in NAMES[CODED]:
        coding = [f"{1000 * timed.get(name, {}).get(phase, 0.0):.2f}" for phase in ("encode", "decode")]
        table.append((name, *coding, *(f"{ms.loc[(name, mbit), 'all']:.2f}" for mbit in bandwidths)))
    return table


def density_table(results: Compression) -> Table:
    """Return accuracy and MB a step at each density."""
    table: Table = [("method", "density, %", "accuracy, %", "MB a step", "codes")]
    for (name, share), one in _by_density(results).groupby(["name", "density"], sort=False):
        mb, code = (f"{(one[column] / one['steps']).mean():.3f}" for column in ("mb", "code_mb"))
        table.append((str(name), f"{100 * float(str(share)):g}", spread(one["accuracy"], 2, 100), mb, code))
    return table


def grid_table(results: Compression) -> Table:
    """Return the accuracy of every rate of the grid."""
    rows = last_epochs(pd.concat([results.of(METHODS, "grid"), results.of(CODED, "grid")]))
    rates = sorted(rows["lr"].unique())
    table: Table = [("accuracy, %", *(f"rate {rate:g}" for rate in rates))]
    for name, one in rows.groupby("name", sort=False):
        accuracy = one.set_index("lr")["accuracy"].reindex(rates)
        table.append((str(name), *("nan" if pd.isna(value) else f"{100 * value:.2f}" for value in accuracy)))
    return table


# Sentences


def _bullets(*sentences: str) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def says_methods(results: Compression) -> str:
    """Return what the methods show, as sentences with their numbers."""
    ends = last_epochs(results.of(METHODS, "final"))
    most = int(ends["workers"].max())
    ends = ends.assign(step_mb=ends["mb"] / ends["steps"])

    def each(column: str, digits: int, unit: str, names: Sequence[str], scale: float = 1.0) -> str:
        of = {name: ends[(ends["name"] == name) & (ends["workers"] == most)][column] for name in names}
        return ", ".join(f"{name} {spread(values, digits, scale)}{unit}" for name, values in of.items())

    alone = ends[ends["name"] == ONE_WORKER]["accuracy"]
    mean = ends[ends["workers"] == most].groupby("name")[["step_mb", "seconds"]].mean()
    return _bullets(
        f"**Accuracy, {most} workers:** {each('accuracy', 2, ' %', [*ON_A_SERVER, ONE_PROCESS], 100)}; one process on "
        f"the batches of one worker, which takes {most} times as many steps, {spread(alone, 2, 100)} %.",
        f"**MB a step, {most} workers:** {each('step_mb', 2, '', list(ON_A_SERVER))}: DGS sends 1/"
        f"{mean.loc['ASGD', 'step_mb'] / mean.loc['DGS', 'step_mb']:.0f} of what ASGD sends, GD 1/"
        f"{mean.loc['ASGD', 'step_mb'] / mean.loc['GD', 'step_mb']:.1f}.",
        f"**Virtual seconds at {rate_of(USUAL)}, {most} workers:** "
        f"{each('seconds', 2, '', [*ON_A_SERVER, ONE_PROCESS])}.",
        f"**Staleness, {most} workers:** {each('staleness', 2, '', list(ON_A_SERVER))}.",
    )


def says_times(results: Compression) -> str:
    """Return where compression pays, as sentences with their numbers."""
    sentences = []
    for question, where in (("time", "a ring"), ("server", "a server")):
        ms = steps_of(results, question).xs(TUNED_AT, level="workers")["all"].unstack("mbit")
        for mbit in dict.fromkeys(results.of(CODED, question)["mbit"]):
            gain = (ms.loc["none", mbit] / ms[mbit]).drop("none").sort_values(ascending=False)
            slower = ", ".join(f"{name} {value:.2f}" for name, value in gain.items() if value <= 1)
            best = ", ".join(f"{name} {value:.2f}" for name, value in gain.head(3).items())
            sentences.append(
                f"**{rate_of(mbit)}, {TUNED_AT} workers of {where}**, times as fast as without a codec: {best}"
                + (f"; not faster: {slower}." if slower else "; all are faster.")
            )
    return _bullets(*sentences)


def says_lossless(results: Compression) -> str:
    """Return what the codec without loss gains, as a sentence with its numbers."""
    rows = results.of(CODED, "server").set_index(["name", "mbit"])
    size = rows.loc["blosc", "code_mb"].mean() / (2 * rows.loc["fp16", "code_mb"].mean())  # a float16 is half
    ms = {question: steps_of(results, question).xs(TUNED_AT, level="workers")["all"] for question in ("time", "server")}
    slowest = int(rows.index.get_level_values("mbit").min())
    gain = {question: of["none", slowest] / of["blosc", slowest] for question, of in ms.items()}
    return (
        f"Without loss a gradient of this network keeps {100 * size:.0f} % of its bytes. At {rate_of(slowest)} that "
        f"makes the steps of {TUNED_AT} workers {gain['server']:.2f} times as fast around a server, and "
        f"{gain['time']:.2f} times on a ring, where codes that cannot be added go to everyone."
    )


def says_accuracy(results: Compression) -> str:
    """Return what the codecs cost in accuracy, as sentences with their numbers."""
    ends = last_epochs(results.of(CODED, "final"))
    sentences = []
    for workers in (int(ends["workers"].min()), int(ends["workers"].max())):
        mean = 100 * ends[ends["workers"] == workers].groupby("name", sort=False)["accuracy"].mean()
        lost = (mean - mean["none"]).drop("none").sort_values()
        each = ", ".join(f"{name} {value:+.1f}" for name, value in lost.items())
        sentences.append(f"**{workers} workers**, points to the {mean['none']:.1f} % without a codec: {each}.")
    return _bullets(*sentences)


def says_density(results: Compression) -> str:
    """Return what the density changes, as a sentence with its numbers."""
    rows = _by_density(results)
    parts = []
    for name, one in rows.groupby("name", sort=False):
        of = [f"{100 * float(str(share)):g} %: {spread(values, 2, 100)} %"
              for share, values in one.groupby("density")["accuracy"]][::-1]  # fmt: skip
        parts.append(f"**{name}** by density: {', '.join(of)}")
    return _bullets(*(f"{part}." for part in parts))
