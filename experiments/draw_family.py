"""Figures of the servers that wait less."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.cases import FAMILY_SERVERS, OF_ALL, OF_SYNCHRONOUS, SYNCHRONOUS
from experiments.drawing import WIDTH, bar, colour_of, legend_below, line, name_of, whiskers
from experiments.measured import Servers

_AGAINST = {"updates": "updates of the server", "seconds": "seconds of training", "mb": "MB sent by all ranks"}
_PARTS = {"final": "three equal workers", "slow": "worker 3 five times as slow"}
_MODES = {"write": ("#c25b4e", "read, modify, write back"), "push": ("#5a9e6f", "push the increment")}
_SHORT = {"sync": "sync", "backup": "backup", "bounded": "bound", "async": "async", "downpour": "Down-\npour"}
_STALE = [server for server, strategy in FAMILY_SERVERS.items() if strategy.traits.asynchronous]
_WORKERS = {1: "#7fa8d1", 2: "#2c5282", 3: "#c25b4e"}


def _short(server: str) -> str:
    return _SHORT.get(server, name_of(server).replace(" ", "\n"))


def summary(results: Servers) -> Figure:
    """Draw the README's figure: accuracy against everything, staleness, a slow worker, lost updates."""
    figure = Figure((WIDTH, 6.0), layout="constrained")
    top, bottom = figure.subplots(2, 3)
    _accuracy(top, results)
    _staleness_of_servers(bottom[0], results)
    _epoch_seconds(bottom[1], results)
    _kept(bottom[2], results)
    legend_below(figure, top[0])
    return figure


def accuracy(results: Servers) -> Figure:
    """Draw the held-out accuracy against updates, seconds and MB."""
    figure = Figure((WIDTH, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    _accuracy(panels, results)
    legend_below(figure, panels[0])
    return figure


def _accuracy(panels: Sequence[Axes], results: Servers) -> None:
    for axes, x in zip(panels, _AGAINST, strict=True):
        _against(axes, results, x)
    panels[1].set_ylabel("")
    panels[2].set_ylabel("")


def _against(axes: Axes, results: Servers, x: str, part: str = "final") -> None:
    """Draw accuracy against `x`, one of _AGAINST, one line a server, a point an epoch."""
    for server in FAMILY_SERVERS:
        rows = results.epochs.query("part == @part and server == @server")
        line(axes, rows, x, "accuracy", "epoch", color=colour_of(server), label=name_of(server))
    axes.set(xlabel=_AGAINST[x], ylabel="held-out accuracy, %", xlim=(0, None))
    axes.set_title(f"accuracy against {x if x != 'mb' else 'MB'}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(alpha=0.3)


def grid(results: Servers) -> Figure:
    """Draw the accuracy of every server with every learning rate of the grid; a ring is round the one chosen.

    A rate with which a run diverged has no accuracy: it is a cross below the axis of those that have one.
    """
    figure = Figure((WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title("what each learning rate gives on the grid", fontsize=10)
    low = 100 * float(results.grid["accuracy"].min())
    for number, (server, best) in enumerate(results.rates.items()):
        rows = results.grid[results.grid["server"] == server].groupby("lr")["accuracy"]
        lost = rows.apply(lambda accuracy: bool(accuracy.isna().any()))
        values = 100 * rows.mean()[~lost]
        aside, colour = 1.03 ** (number - 2), colour_of(server)  # points beside, not over, one another
        ranges = [whiskers(100 * rows.get_group(rate)) for rate in values.index]
        error = [[one[side][0] for one in ranges] for side in (0, 1)]
        style: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "capsize": 2, "label": name_of(server)}
        axes.errorbar(values.index * aside, values, error, **style)
        diverged = lost[lost].index
        axes.plot(diverged * aside, [low - 4 - 3 * number] * len(diverged), "x", color=colour, ms=6, mew=1.5)
        if best in values.index:
            axes.plot(best * aside, values[best], "o", ms=11, mfc="none", mec=colour, mew=1.5)
    if results.grid["accuracy"].isna().any():
        axes.axhline(low - 2, color="#999999", lw=0.8, ls=":")
        axes.annotate("diverged", (0.01, low - 9), xycoords=("axes fraction", "data"), fontsize=8, color="#555555")
    rates = sorted(results.grid["lr"].unique())
    axes.set(xscale="log", xlabel="learning rate", ylabel="held-out accuracy, %")
    axes.set_xticks(rates, [f"{lr:g}" for lr in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure


def staleness(results: Servers) -> Figure:
    """Draw how stale each worker's gradients were, with equal workers (above) and with a slow one (below)."""
    figure = Figure((WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(len(_PARTS), len(_STALE), sharex="col", squeeze=False)
    for row, (part, what) in zip(panels, _PARTS.items(), strict=True):
        for axes, server in zip(row, _STALE, strict=True):
            every = results.staleness[results.staleness["part"] == part]
            for worker, counts in every[every["server"] == server].groupby("worker"):
                share, k = _share(counts), int(str(worker))
                axes.bar(share.index + 0.27 * (k - 2), share, 0.27, color=_WORKERS[k], label=f"worker {k}")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.set_ylim(bottom=0)
            axes.set_title(f"{name_of(server)}\n{what}", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("staleness, versions")
    for axes in panels[:, 0]:
        axes.set_ylabel("% of a worker's gradients")
    legend_below(figure, panels[0][-1], 3)
    return figure


def _staleness_of_servers(axes: Axes, results: Servers) -> None:
    """Draw a bar for each server beside each other: of all gradients of all workers and seeds."""
    width = 0.85 / len(_STALE)
    for number, server in enumerate(_STALE):
        share = _share(results.staleness.query("server == @server and part == 'final'"))
        axes.bar(share.index + width * (number - (len(_STALE) - 1) / 2), share, width, color=colour_of(server))
    axes.set(xlabel="staleness, versions", ylabel="% of gradients", ylim=(0, None))
    axes.set_title("staleness, equal workers", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _share(counts: pd.DataFrame) -> pd.Series:
    """Return which % of the gradients were how stale."""
    return counts.groupby("staleness")["count"].sum() * 100 / counts["count"].sum()


def straggler(results: Servers) -> Figure:
    """Draw what one slow worker does: to the time of an epoch, to its part of the work, to accuracy over time."""
    figure = Figure((WIDTH, 3.6), layout="constrained")
    times, parts, curves = figure.subplots(1, 3)
    _epoch_seconds(times, results)
    _contributions(parts, results)
    _against(curves, results, "seconds", "slow")
    curves.set_title(_PARTS["slow"], fontsize=9)
    legend_below(figure, curves)
    return figure


def _epoch_seconds(axes: Axes, results: Servers) -> None:
    """Draw the seconds of an epoch, a pair of bars a server: pale with equal workers, full with a slow one."""
    _pairs(axes, results, "epoch_s", OF_ALL, tuple(FAMILY_SERVERS))
    axes.set_ylabel("seconds per epoch")
    axes.set_title("pale: equal workers, full: one 5 times as slow", fontsize=8)


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
    axes.set_xticks(range(len(left)), [_short(server) for server in left.index], fontsize=8)
    axes.set_ylabel("% of the samples, by worker")
    axes.set_title("who computes when worker 3 is slow", fontsize=9)


def backup(results: Servers) -> Figure:
    """Draw the time of an update without and with one backup worker, and what a slow worker makes of it."""
    figure = Figure((WIDTH, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _update_times(left, results, OF_ALL)
    left.set_title("four ranks on this machine's cores", fontsize=10)
    _update_times(right, results, OF_SYNCHRONOUS)
    right.set_title("as if each worker had a device of its own", fontsize=10)
    return figure


def _update_times(axes: Axes, results: Servers, parts: tuple[str, str]) -> None:
    """Draw the ms of an update, a pair of bars for b = 0 and for b = 1; a dashed line is 1.2 times the pale one."""
    equal, slow = (results.runs[results.runs["part"] == part].groupby("server")["step_s"] for part in parts)
    _pairs(axes, results, "step_s", parts, SYNCHRONOUS, 1000)
    for place, server in enumerate(SYNCHRONOUS):
        base = equal.mean()[server]
        axes.hlines(1200 * base, place - 0.42, place + 0.42, color="#222222", lw=1, ls="--")
        at = (place + 0.2, 1000 * max(slow.max()[server], 1.2 * base))
        times = f"{slow.mean()[server] / base:.2f} times"
        axes.annotate(times, at, (0, 4), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(range(2), ["b = 0", "b = 1"])
    axes.set(ylabel="ms per update", ylim=(0, 1.15 * axes.get_ylim()[1]))


def _pairs(
    axes: Axes, results: Servers, column: str, parts: tuple[str, ...], servers: tuple[str, ...], scale: float = 1
) -> None:
    """Draw two bars a server, of the runs with equal workers (pale) and with a slow one."""
    for place, server in enumerate(servers):
        for part, aside, alpha in zip(parts, (-0.2, 0.2), (0.45, 1.0), strict=True):
            rows = results.runs[(results.runs["server"] == server) & (results.runs["part"] == part)]
            bar(axes, place + aside, rows[column] * scale, colour_of(server), alpha=alpha)
    axes.set_xticks(range(len(servers)), [_short(server) for server in servers], fontsize=8)


def lost(results: Servers) -> Figure:
    """Draw how many of the updates of several clients a server has kept."""
    figure = Figure((WIDTH, 3.0), layout="constrained")
    _kept(figure.subplots(), results)
    return figure


def _kept(axes: Axes, results: Servers) -> None:
    """Draw a pair of bars for each number of clients: the % of the updates that was kept."""
    share = 100 * results.lost["kept"] / results.lost["made"]
    numbers = sorted(map(int, results.lost["clients"].unique()))
    for (mode, (colour, name)), aside in zip(_MODES.items(), (-0.2, 0.2), strict=True):
        for place, n in enumerate(numbers):
            bar(axes, place + aside, share[(results.lost["mode"] == mode) & (results.lost["clients"] == n)], colour)
        axes.bar(0, 0, color=colour, label=name)
    axes.set_xticks(range(len(numbers)), [f"{n} client" + "s" * (n > 1) for n in numbers])
    axes.set(ylabel="% of the updates kept", ylim=(0, 135), yticks=range(0, 101, 25))
    axes.set_title("updates that a server keeps", fontsize=9)
    axes.legend(fontsize=8, loc="upper right", ncols=1)
