"""Figures of the servers that wait less."""

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.cases import FAMILY_SERVERS, OF_ALL, OF_SYNCHRONOUS
from experiments.drawing import COLOURS, NAMES, PALE_AND_DARK, bars, finish, legend_below, lines, panels, sheet
from experiments.measured import Servers

_AGAINST = {"updates": "updates of the server", "seconds": "seconds of training", "mb": "MB sent by all ranks"}
_PARTS = {"final": "three equal workers", "slow": "worker 3 five times as slow"}
_MODES = {"write": "#c25b4e", "push": "#5a9e6f"}
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


def staleness(results: Servers) -> Figure:
    """Draw how stale each worker's gradients were, with equal workers (above) and with a slow one (below)."""
    figure, grid = sheet(4.6, len(_PARTS), len(_STALE), sharex="col", squeeze=False)
    of = results.staleness.groupby(["part", "server"])
    for axes, (part, server) in zip(grid.flat, product(_PARTS, _STALE), strict=True):
        _shares(axes, of.get_group((part, server)), "worker", _WORKERS, f"{NAMES[server]}\n{_PARTS[part]}")
    legend_below(figure, grid[0][-1], 3)
    return figure


def _staleness_of_servers(axes: Axes, results: Servers) -> None:
    """Draw a bar for each server beside each other: of all gradients of all workers and seeds."""
    equal = results.staleness[results.staleness["part"] == "final"]
    _shares(axes, equal, "server", _STALE, "staleness, equal workers")


def _shares(axes: Axes, rows: pd.DataFrame, by: str, colours: Mapping[Any, str], title: str) -> None:
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
    """Draw the seconds of an epoch, a pair of bars a server: with equal workers, and with a slow one."""
    _slowed(axes, results, "epoch_s", OF_ALL, _SHORT)
    finish(axes, "pale: equal workers,\ndark: one 5 times as slow", "y", ylabel="seconds per epoch")


def _update_times(axes: Axes, results: Servers, parts: tuple[str, str], title: str) -> None:
    """Draw the ms of an update without (b = 0) and with a backup worker; how many times as long with a slow one."""
    means = _slowed(axes, results, "step_ms", parts, {"sync": "b = 0", "backup": "b = 1"})
    times = (means[parts[1]] / means[parts[0]]).map("{:.2f} times".format)
    axes.bar_label(axes.containers[-1], times, padding=3, fontsize=9)
    axes.margins(y=0.12)
    finish(axes, title, "y", ylabel="ms per update")


def _slowed(axes: Axes, results: Servers, what: str, parts: tuple[str, str], names: Mapping[str, str]) -> pd.DataFrame:
    """Draw a pair of bars for each of the servers that have `names`: equal workers, a slow one; return the means."""
    runs = results.runs[results.runs["part"].isin(parts)].assign(step_ms=1000 * results.runs["step_s"])
    samples = runs.set_index(["server", "part"])[what].loc[list(names)]
    means = bars(axes, samples, dict(zip(parts, PALE_AND_DARK, strict=True)))
    axes.set_xticks(range(len(names)), names.values(), fontsize=8)
    return means


def _contributions(axes: Axes, results: Servers) -> None:
    """Draw which part of the samples each worker computed, with a slow one."""
    rows = results.ranks[(results.ranks["part"] == "slow") & results.ranks["share"].notna()]
    shares = 100 * rows.groupby(["server", "rank"])["share"].mean().unstack().reindex(list(_SHORT))
    shares.plot.bar(stacked=True, ax=axes, color=_WORKERS, width=0.7, legend=False, rot=0)
    for worker, bars_of in zip(shares, axes.containers, strict=True):
        axes.bar_label(bars_of, [worker] * len(shares), label_type="center", color="white", fontsize=8)
    axes.set_xticks(range(len(_SHORT)), _SHORT.values(), fontsize=8)
    finish(axes, "who computes when worker 3 is slow", "y", xlabel="", ylabel="% of the samples, by worker")


def _kept(axes: Axes, results: Servers) -> None:
    """Draw a pair of bars for each number of clients: the % of the updates that was kept."""
    share = results.lost.assign(kept=100 * results.lost["kept"] / results.lost["made"])
    means = bars(axes, share.set_index(["clients", "mode"])["kept"], _MODES)
    axes.set_xticklabels([f"{n} client{'s' * (n > 1)}" for n in means.index])
    finish(axes, "updates that a server keeps", "y", ylabel="% of the updates kept", ylim=(0, 135))
    axes.set_yticks(range(0, 101, 25))
    axes.legend(["read, modify, write back", "push the increment"], fontsize=8, loc="upper right")
