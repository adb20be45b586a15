"""Figures of the servers that wait less."""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.cases import FAMILY_SERVERS, OF_ALL, OF_SYNCHRONOUS, SYNCHRONOUS
from experiments.drawing import COLOURS, NAMES, bar, entitle, legend_below, line, pairs, panels, sheet, whiskers
from experiments.measured import Servers

_AGAINST = {"updates": "updates of the server", "seconds": "seconds of training", "mb": "MB sent by all ranks"}
_PARTS = {"final": "three equal workers", "slow": "worker 3 five times as slow"}
_MODES = {"write": ("#c25b4e", "read, modify, write back"), "push": ("#5a9e6f", "push the increment")}
_SHORT = {"sync": "sync", "backup": "backup", "bounded": "bound", "async": "async", "downpour": "Down-\npour"}
_STALE = [server for server, strategy in FAMILY_SERVERS.items() if strategy.traits.asynchronous]
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


def _against(
    axes: Axes, results: Servers, x: str, part: str = "final", title: str | None = None,
    ylabel: str = "held-out accuracy, %",
) -> None:  # fmt: skip
    """Draw accuracy against `x`, one of _AGAINST, one line a server, a point an epoch."""
    for server in FAMILY_SERVERS:
        rows = results.epochs.query("part == @part and server == @server")
        line(axes, rows, x, "accuracy", "epoch", color=COLOURS[server], label=NAMES[server])
    title = title or f"accuracy against {x if x != 'mb' else 'MB'}"
    entitle(axes, title, 9, xlabel=_AGAINST[x], ylabel=ylabel, xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(alpha=0.3)


_ACCURACY = [partial(_against, x="updates"), *(partial(_against, x=x, ylabel="") for x in ("seconds", "mb"))]


def grid(results: Servers) -> Figure:
    """Draw the accuracy of every server with every learning rate of the grid; a ring is round the one chosen.

    A rate with which a run diverged has no accuracy: it is a cross below the axis of those that have one.
    """
    figure, axes = sheet(3.6)
    low = 100 * float(results.grid["accuracy"].min())
    for number, (server, best) in enumerate(results.rates.items()):
        rows = results.grid[results.grid["server"] == server].groupby("lr")["accuracy"]
        lost = rows.apply(lambda accuracy: bool(accuracy.isna().any()))
        values = 100 * rows.mean()[~lost]
        aside, colour = 1.03 ** (number - 2), COLOURS[server]  # points beside, not over, one another
        error = whiskers(*(100 * rows.get_group(rate) for rate in values.index))
        style: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "capsize": 2, "label": NAMES[server]}
        axes.errorbar(values.index * aside, values, error, **style)
        diverged = lost[lost].index
        axes.plot(diverged * aside, [low - 4 - 3 * number] * len(diverged), "x", color=colour, ms=6, mew=1.5)
        if best in values.index:
            axes.plot(best * aside, values[best], "o", ms=11, mfc="none", mec=colour, mew=1.5)
    if results.grid["accuracy"].isna().any():
        axes.axhline(low - 2, color="#999999", lw=0.8, ls=":")
        axes.annotate("diverged", (0.01, low - 9), xycoords=("axes fraction", "data"), fontsize=8, color="#555555")
    rates = sorted(results.grid["lr"].unique())
    title = "what each learning rate gives on the grid"
    entitle(axes, title, xscale="log", xlabel="learning rate", ylabel="held-out accuracy, %")
    axes.set_xticks(rates, [f"{lr:g}" for lr in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure


def staleness(results: Servers) -> Figure:
    """Draw how stale each worker's gradients were, with equal workers (above) and with a slow one (below)."""
    figure, grid = sheet(4.6, len(_PARTS), len(_STALE), sharex="col", squeeze=False)
    of = results.staleness.groupby(["part", "server"])
    for row, (part, what) in zip(grid, _PARTS.items(), strict=True):
        for axes, server in zip(row, _STALE, strict=True):
            counts = of.get_group((part, server))
            bars = {f"worker {k}": (colour, counts[counts["worker"] == k]) for k, colour in _WORKERS.items()}
            _shares(axes, bars, 0.27, f"{NAMES[server]}\n{what}")
    for axes in grid[-1]:
        axes.set_xlabel("staleness, versions")
    for axes in grid[:, 0]:
        axes.set_ylabel("% of a worker's gradients")
    legend_below(figure, grid[0][-1], 3)
    return figure


def _staleness_of_servers(axes: Axes, results: Servers) -> None:
    """Draw a bar for each server beside each other: of all gradients of all workers and seeds."""
    counts = results.staleness[results.staleness["part"] == "final"]
    bars = {server: (COLOURS[server], counts[counts["server"] == server]) for server in _STALE}
    _shares(axes, bars, 0.85 / len(_STALE), "staleness, equal workers")
    axes.set(xlabel="staleness, versions", ylabel="% of gradients")


def _shares(axes: Axes, bars: dict[str, tuple[str, pd.DataFrame]], width: float, title: str) -> None:
    """Draw which % of the gradients were how stale: of each label, which has a colour and counts, beside each other."""
    for number, (label, (colour, counts)) in enumerate(bars.items()):
        share = counts.groupby("staleness")["count"].sum() * 100 / counts["count"].sum()
        axes.bar(share.index + width * (number - (len(bars) - 1) / 2), share, width, color=colour, label=label)
    entitle(axes, title, 9, ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _epoch_seconds(axes: Axes, results: Servers) -> None:
    """Draw the seconds of an epoch, a pair of bars a server: pale with equal workers, full with a slow one."""
    _pairs(axes, results.runs, "epoch_s", OF_ALL, tuple(FAMILY_SERVERS))
    entitle(axes, "pale: equal workers, full: one 5 times as slow", 8, ylabel="seconds per epoch")
    axes.set_xticks(range(len(_SHORT)), _SHORT.values(), fontsize=8)


def _contributions(axes: Axes, results: Servers) -> None:
    """Draw which part of the samples each worker computed, with a slow one."""
    rows = results.ranks[(results.ranks["part"] == "slow") & results.ranks["share"].notna()]
    shares = 100 * rows.groupby(["server", "rank"])["share"].mean().unstack().reindex(list(FAMILY_SERVERS))
    left = pd.Series(0.0, index=shares.index)
    for worker, width in shares.items():
        axes.bar(range(len(left)), width, bottom=left, color=_WORKERS[int(str(worker))], width=0.7)
        for place, (below, height) in enumerate(zip(left, width, strict=True)):
            if height > 5:
                axes.text(place, below + height / 2, str(worker), ha="center", va="center", color="white", fontsize=8)
        left = left + width
    axes.set_xticks(range(len(_SHORT)), _SHORT.values(), fontsize=8)
    entitle(axes, "who computes when worker 3 is slow", 9, ylabel="% of the samples, by worker")


def _update_times(axes: Axes, results: Servers, parts: tuple[str, str], title: str) -> None:
    """Draw the ms of an update, a pair of bars for b = 0 and for b = 1; a dashed line is 1.2 times the pale one."""
    equal, slow = (results.runs[results.runs["part"] == part].groupby("server")["step_s"] for part in parts)
    _pairs(axes, results.runs, "step_s", parts, SYNCHRONOUS, 1000)
    for place, server in enumerate(SYNCHRONOUS):
        base = equal.mean()[server]
        axes.hlines(1200 * base, place - 0.42, place + 0.42, color="#222222", lw=1, ls="--")
        at = (place + 0.2, 1000 * max(slow.max()[server], 1.2 * base))
        times = f"{slow.mean()[server] / base:.2f} times"
        axes.annotate(times, at, (0, 4), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(range(2), ["b = 0", "b = 1"], fontsize=8)
    entitle(axes, title, ylabel="ms per update", ylim=(0, 1.15 * axes.get_ylim()[1]))


def _pairs(
    axes: Axes, runs: pd.DataFrame, column: str, parts: tuple[str, ...], servers: tuple[str, ...], scale: float = 1
) -> None:
    values = runs.set_index(["server", "part"]).sort_index()[column] * scale
    samples = ((values[server, parts[0]], values[server, parts[1]]) for server in servers)
    pairs(axes, samples, (COLOURS[server] for server in servers))


def _kept(axes: Axes, results: Servers) -> None:
    """Draw a pair of bars for each number of clients: the % of the updates that was kept."""
    share = 100 * results.lost["kept"] / results.lost["made"]
    numbers = sorted(map(int, results.lost["clients"].unique()))
    for (mode, (colour, name)), aside in zip(_MODES.items(), (-0.2, 0.2), strict=True):
        for place, n in enumerate(numbers):
            bar(axes, place + aside, share[(results.lost["mode"] == mode) & (results.lost["clients"] == n)], colour)
        axes.bar(0, 0, color=colour, label=name)
    axes.set_xticks(range(len(numbers)), [f"{n} client" + "s" * (n > 1) for n in numbers])
    entitle(axes, "updates that a server keeps", 9, ylabel="% of the updates kept", ylim=(0, 135),
            yticks=range(0, 101, 25))  # fmt: skip
    axes.legend(fontsize=8, loc="upper right", ncols=1)
