"""Figures of the servers that wait less."""

from collections.abc import Mapping
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.cases import FAMILY_SERVERS, OF_ALL, OF_SYNCHRONOUS, SYNCHRONOUS
from experiments.drawing import COLOURS, NAMES, bar, finish, legend_below, lines, pairs, panels, sheet
from experiments.measured import Servers

_AGAINST = {"updates": "updates of the server", "seconds": "seconds of training", "mb": "MB sent by all ranks"}
_PARTS = {"final": "three equal workers", "slow": "worker 3 five times as slow"}
_MODES = {"write": ("#c25b4e", "read, modify, write back"), "push": ("#5a9e6f", "push the increment")}
_SHORT = {"sync": "sync", "backup": "backup", "bounded": "bound", "async": "async", "downpour": "Down-\npour"}
_STALE = {server: COLOURS[server] for server, strategy in FAMILY_SERVERS.items() if strategy.traits.asynchronous}
_WORKERS = {1: "#7fa8d1", 2: "#2c5282", 3: "#c25b4e"}


def summary(results: Servers) -> Figure:
    """Draw the README's figure: accuracy against everything, staleness, a slow worker, lost updates."""
    return panels(results, 6.0, 2, [*_ACCURACY, _staleness_of_servers, _epoch_seconds, _kept], 0)


def accuracy(results: Servers) -> Figure:
    """Draw the held-out accuracy against updates, seconds and MB."""
    return panels(results, 3.4, 1, _ACCURACY, 0, sharey=True)


def straggler(results: Servers) -> Figure:
    """Draw what one slow worker does: to the time of an epoch, to its part of the work, to accuracy over time."""
    curves = partial(_against, x="seconds", part="slow", title=_PARTS["slow"])
    return panels(results, 3.6, 1, [_epoch_seconds, _contributions, curves], 2)


def backup(results: Servers) -> Figure:
    """Draw the time of an update without and with one backup worker, and what a slow worker makes of it."""
    left = partial(_update_times, parts=OF_ALL, title="four ranks on this machine's cores")
    right = partial(_update_times, parts=OF_SYNCHRONOUS, title="as if each worker had a device of its own")
    return panels(results, 3.4, 1, [left, right])


def lost(results: Servers) -> Figure:
    """Draw how many of the updates of several clients a server has kept."""
    return panels(results, 3.0, 1, [_kept])


def _against(axes: Axes, results: Servers, x: str, part: str = "final", title: str | None = None) -> None:
    """Draw accuracy against `x`, one of _AGAINST, one line a server, a point an epoch."""
    colours = {server: COLOURS[server] for server in FAMILY_SERVERS}
    lines(axes, results.epochs[results.epochs["part"] == part], x, "accuracy", colours, "epoch", "server")
    title, ylabel = title or f"accuracy against {_AGAINST[x].split()[0]}", "held-out accuracy, %"
    finish(axes, title, xlabel=_AGAINST[x], ylabel=ylabel if x != "mb" else "", xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(4))


_ACCURACY = [partial(_against, x=x) for x in _AGAINST]


def grid(results: Servers) -> Figure:
    """Draw the accuracy of every server with every learning rate of the grid; a ring is round the one chosen.

    A rate with which a run diverged has no accuracy: it is a cross below the axis of those that have one.
    """
    figure, axes = sheet(3.6)
    low = 100 * float(results.grid["accuracy"].min())
    for number, (server, best) in enumerate(results.rates.items()):
        of = 100 * results.grid[results.grid["server"] == server].set_index("lr")["accuracy"]
        aside, colour = 1.03 ** (number - 2), COLOURS[server]  # points beside, not over, one another
        axes.plot(of.index * aside, of, "o-", ms=4, color=colour, label=NAMES[server])
        axes.plot(best * aside, of[best], "o", ms=11, mfc="none", mec=colour, mew=1.5)
        diverged = of[of.isna()].index
        axes.plot(diverged * aside, [low - 4 - 3 * number] * len(diverged), "x", color=colour, ms=6, mew=1.5)
    if results.grid["accuracy"].isna().any():
        axes.axhline(low - 2, color="#999999", lw=0.8, ls=":")
        axes.annotate("diverged", (0.01, low - 9), xycoords=("axes fraction", "data"), fontsize=8, color="#555555")
    title = "what each learning rate gives on the grid"
    finish(axes, title, xscale="log", xlabel="learning rate", ylabel="held-out accuracy, %")
    rates = sorted(results.grid["lr"].unique())
    axes.set_xticks(rates, [f"{lr:g}" for lr in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    legend_below(figure, axes)
    return figure


def staleness(results: Servers) -> Figure:
    """Draw how stale each worker's gradients were, with equal workers (above) and with a slow one (below)."""
    figure, rows = sheet(4.6, len(_PARTS), len(_STALE), sharex="col", squeeze=False)
    of = results.staleness.groupby(["part", "server"])
    for row, (part, what) in zip(rows, _PARTS.items(), strict=True):
        for axes, server in zip(row, _STALE, strict=True):
            counts = of.get_group((part, server))
            _shares(axes, counts, "worker", _WORKERS, f"{NAMES[server]}\n{what}")
    legend_below(figure, rows[0][-1], 3)
    return figure


def _staleness_of_servers(axes: Axes, results: Servers) -> None:
    """Draw a bar for each server beside each other: of all gradients of all workers and seeds."""
    equal = results.staleness[results.staleness["part"] == "final"]
    _shares(axes, equal, "server", _STALE, "staleness, equal workers")


def _shares(
    axes: Axes, rows: pd.DataFrame, by: str, colours: Mapping[int, str] | Mapping[str, str], title: str
) -> None:
    """Draw which % of the gradients were how stale, for each value of the column `by` beside each other."""
    width = 0.85 / len(colours)
    for number, (key, colour) in enumerate(colours.items()):
        counts = rows[rows[by] == key].groupby("staleness")["count"].sum()
        places = counts.index + width * (number - (len(colours) - 1) / 2)
        label = f"worker {key}" if by == "worker" else key
        axes.bar(places, 100 * counts / counts.sum(), width, color=colour, label=label)
    finish(axes, title, "y", xlabel="staleness, versions", ylabel="% of gradients")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _epoch_seconds(axes: Axes, results: Servers) -> None:
    """Draw the seconds of an epoch, a pair of bars a server: pale with equal workers, full with a slow one."""
    epochs = results.runs.groupby(["server", "part"])["epoch_s"]
    samples = {server: [epochs.get_group((server, part)) for part in OF_ALL] for server in FAMILY_SERVERS}
    pairs(axes, samples, COLOURS)
    axes.set_xticks(range(len(_SHORT)), _SHORT.values(), fontsize=8)
    finish(axes, "pale: equal workers,\nfull: one 5 times as slow", "y", ylabel="seconds per epoch")


def _contributions(axes: Axes, results: Servers) -> None:
    """Draw which part of the samples each worker computed, with a slow one."""
    rows = results.ranks[(results.ranks["part"] == "slow") & results.ranks["share"].notna()]
    shares = 100 * rows.groupby(["server", "rank"])["share"].mean().unstack().reindex(list(FAMILY_SERVERS))
    left = pd.Series(0.0, index=shares.index)
    for worker, height in shares.items():
        bars = axes.bar(range(len(left)), height, 0.7, left, color=_WORKERS[int(str(worker))])
        axes.bar_label(bars, [str(worker)] * len(left), label_type="center", color="white", fontsize=8)
        left = left + height
    axes.set_xticks(range(len(_SHORT)), _SHORT.values(), fontsize=8)
    finish(axes, "who computes when worker 3 is slow", "y", ylabel="% of the samples, by worker")


def _update_times(axes: Axes, results: Servers, parts: tuple[str, str], title: str) -> None:
    """Draw the ms of an update, a pair of bars for b = 0 and for b = 1; a dashed line is 1.2 times the pale one."""
    steps = (1000 * results.runs.set_index(["server", "part"])["step_s"]).groupby(level=[0, 1])
    samples = {server: [steps.get_group((server, part)) for part in parts] for server in SYNCHRONOUS}
    pairs(axes, samples, COLOURS)
    for place, (equal, slow) in enumerate(samples.values()):
        axes.hlines(1.2 * equal.mean(), place - 0.42, place + 0.42, color="#222222", lw=1, ls="--")
        at = (place + 0.2, max(slow.max(), 1.2 * equal.mean()))
        times = f"{slow.mean() / equal.mean():.2f} times"
        axes.annotate(times, at, (0, 4), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(range(2), ["b = 0", "b = 1"], fontsize=8)
    finish(axes, title, "y", ylabel="ms per update", ylim=(0, 1.15 * axes.get_ylim()[1]))


def _kept(axes: Axes, results: Servers) -> None:
    """Draw a pair of bars for each number of clients: the % of the updates that was kept."""
    share = (100 * results.lost["kept"] / results.lost["made"]).groupby([results.lost["mode"], results.lost["clients"]])
    numbers = sorted(map(int, results.lost["clients"].unique()))
    for (mode, (colour, name)), aside in zip(_MODES.items(), (-0.2, 0.2), strict=True):
        for place, n in enumerate(numbers):
            bar(axes, place + aside, share.get_group((mode, n)), colour, label="" if place else name)
    axes.set_xticks(range(len(numbers)), [f"{n} client" + "s" * (n > 1) for n in numbers])
    finish(axes, "updates that a server keeps", "y", ylabel="% of the updates kept", ylim=(0, 135))
    axes.set_yticks(range(0, 101, 25))
    axes.legend(fontsize=8, loc="upper right", ncols=1)
