"""How the results of the server family are drawn: means over seeds, bands and whiskers the range of the seeds."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments import plots
from experiments.family import Family, name_of
from experiments.family_runs import OF_ALL, OF_SYNCHRONOUS, SERVERS, SYNCHRONOUS
from records.legends import DASHED

COLOURS = {
    "sync": "#c25b4e",
    "backup": "#d9903d",
    "bounded": "#8c6bb1",
    "async": "#3b6ea5",
    "downpour": "#5a9e6f",
}
AGAINST = {"updates": "updates of the server", "seconds": "seconds of training", "mb": "MB sent by all ranks"}
PARTS = {"final": "three equal workers", "slow": "worker 3 five times as slow"}
MODES = {"write": ("#c25b4e", "read, modify, write back"), "push": ("#5a9e6f", "push the increment")}
_SHORT = {"sync": "sync", "backup": "backup", "bounded": "bound", "async": "async", "downpour": "Down-\npour"}
_STALE = [server for server, strategy in SERVERS.items() if strategy.traits.asynchronous]
_WORKERS = {1: "#7fa8d1", 2: "#2c5282", 3: "#c25b4e"}
_WIDTH = 9.0  # inches, at 100 dpi the width of a README


def colour_of(server: str) -> str:
    """Return the colour of a server; without an entry in COLOURS, one of a cycle."""
    return COLOURS.get(server) or plots.other_colour(server, [name for name in SERVERS if name not in COLOURS])


def _short(server: str) -> str:
    return _SHORT.get(server, name_of(server).replace(" ", "\n"))


def summary(family: Family) -> Figure:
    """Draw the README's figure: accuracy against everything, staleness, a slow worker, lost updates."""
    figure = Figure((_WIDTH, 6.0), layout="constrained")
    top, bottom = figure.subplots(2, 3)
    for axes, x in zip(top, AGAINST, strict=True):
        against(axes, family, x)
    top[1].set_ylabel("")
    top[2].set_ylabel("")
    of_server(bottom[0], family)
    epoch_seconds(bottom[1], family)
    kept(bottom[2], family)
    _legend_below(figure, top[0], 5)
    return figure


def accuracy(family: Family, part: str = "final") -> Figure:
    """Draw the held-out accuracy against updates, seconds and MB."""
    figure = Figure((_WIDTH, 3.4), layout="constrained")
    grid = figure.subplots(1, 3, sharey=True)
    for axes, x in zip(grid, AGAINST, strict=True):
        against(axes, family, x, part)
    grid[1].set_ylabel("")
    grid[2].set_ylabel("")
    _legend_below(figure, grid[0], 5)
    return figure


def against(axes: Axes, family: Family, x: str, part: str = "final") -> None:
    """Draw accuracy against `x`, one of AGAINST, one line a server, a point an epoch."""
    rows = family.epochs[family.epochs["part"] == part]
    for server in SERVERS:
        colour = colour_of(server)
        epochs = rows[rows["server"] == server].groupby("epoch")
        across = epochs[x].mean()
        values = 100 * epochs["accuracy"].agg(["mean", "min", "max"])
        axes.plot(across, values["mean"], color=colour, marker="o", ms=4, label=name_of(server))
        axes.fill_between(across, values["min"], values["max"], color=colour, alpha=0.15, lw=0)
    axes.set(xlabel=AGAINST[x], ylabel="held-out accuracy, %", xlim=(0, None))
    axes.set_title(f"accuracy against {x if x != 'mb' else 'MB'}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(alpha=0.3)


def grid(family: Family) -> Figure:
    """Draw the accuracy of every server with every learning rate of the grid; a ring is round the one chosen.

    A rate with which a run diverged has no accuracy: it is a cross below the axis of those that have one.
    """
    figure = Figure((_WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title("what each learning rate gives on the grid", fontsize=10)
    low = 100 * float(family.grid["accuracy"].min())
    for number, server in enumerate(SERVERS):
        rows = family.grid[family.grid["server"] == server].groupby("lr")["accuracy"]
        lost = rows.apply(lambda accuracy: bool(accuracy.isna().any()))
        values = 100 * rows.agg(["mean", "min", "max"])[~lost]
        aside = 1.03 ** (number - 2)  # whiskers beside, not over, one another
        whiskers = [values["mean"] - values["min"], values["max"] - values["mean"]]
        colour, label = colour_of(server), name_of(server)
        axes.errorbar(
            values.index * aside, values["mean"], whiskers, color=colour, marker="o", ms=4, capsize=2, label=label
        )
        diverged = lost[lost].index
        axes.plot(diverged * aside, [low - 4 - 3 * number] * len(diverged), "x", color=colour, ms=6, mew=1.5)
        best = family.rates[server]
        if best in values.index:
            axes.plot(best * aside, values["mean"][best], "o", ms=11, mfc="none", mec=colour, mew=1.5)
    if family.grid["accuracy"].isna().any():
        axes.axhline(low - 2, color="#999999", lw=0.8, ls=":")
        axes.annotate("diverged", (0.01, low - 9), xycoords=("axes fraction", "data"), fontsize=8, color="#555555")
    rates = sorted(family.grid["lr"].unique())
    axes.set(xscale="log", xlabel="learning rate", ylabel="held-out accuracy, %")
    axes.set_xticks(rates, [f"{lr:g}" for lr in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    _legend_below(figure, axes, 5)
    return figure


def staleness(family: Family) -> Figure:
    """Draw how stale each worker's gradients were, with equal workers (above) and with a slow one (below)."""
    figure = Figure((_WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(len(PARTS), len(_STALE), sharex="col", squeeze=False)
    for row, (part, what) in zip(panels, PARTS.items(), strict=True):
        for axes, server in zip(row, _STALE, strict=True):
            of_workers(axes, family, server, part)
            axes.set_title(f"{name_of(server)}\n{what}", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("staleness, versions")
    for axes in panels[:, 0]:
        axes.set_ylabel("% of a worker's gradients")
    _legend_below(figure, panels[0][-1], 3)
    return figure


def of_workers(axes: Axes, family: Family, server: str, part: str) -> None:
    """Draw a bar for each worker beside each other: of all its gradients of all seeds."""
    every = family.staleness.query("server == @server and part == @part")
    for worker, counts in every.groupby("worker"):
        place = 0.27 * (int(str(worker)) - 2)
        share = _share(counts)
        axes.bar(share.index + place, share, 0.27, color=_WORKERS[int(str(worker))], label=f"worker {worker}")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylim(bottom=0)


def of_server(axes: Axes, family: Family, part: str = "final") -> None:
    """Draw a bar for each server beside each other: of all gradients of all workers and seeds."""
    width = 0.85 / len(_STALE)
    for number, server in enumerate(_STALE):
        counts = family.staleness.query("server == @server and part == @part")
        if len(counts):
            share = _share(counts)
            axes.bar(share.index + width * (number - (len(_STALE) - 1) / 2), share, width, color=colour_of(server))
    axes.set(xlabel="staleness, versions", ylabel="% of gradients", ylim=(0, None))
    axes.set_title("staleness, equal workers", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _share(counts: pd.DataFrame) -> pd.Series:
    """Return which % of the gradients were how stale."""
    return counts.groupby("staleness")["count"].sum() * 100 / counts["count"].sum()


def straggler(family: Family) -> Figure:
    """Draw what one slow worker does: to the time of an epoch, to its part of the work, to accuracy over time."""
    figure = Figure((_WIDTH, 3.6), layout="constrained")
    times, parts, curves = figure.subplots(1, 3)
    epoch_seconds(times, family)
    contributions(parts, family)
    against(curves, family, "seconds", "slow")
    curves.set_title(PARTS["slow"], fontsize=9)
    _legend_below(figure, curves, 5)
    return figure


def epoch_seconds(axes: Axes, family: Family) -> None:
    """Draw the seconds of an epoch, a pair of bars a server: pale with equal workers, full with a slow one."""
    _pairs(axes, family, "epoch_s")
    axes.set_ylabel("seconds per epoch")
    axes.set_title("pale: equal workers, full: one 5 times as slow", fontsize=8)


def contributions(axes: Axes, family: Family) -> None:
    """Draw which part of the samples each worker computed, with a slow one."""
    rows = family.samples[family.samples["part"] == "slow"]
    shares = 100 * rows.groupby(["server", "worker"])["share"].mean().unstack()
    left = pd.Series(0.0, index=list(SERVERS))
    for worker in shares:
        width = shares[worker].reindex(left.index)
        axes.bar(range(len(left)), width, bottom=left, color=_WORKERS[int(worker)], width=0.7)
        for place, (below, height) in enumerate(zip(left, width, strict=True)):
            if height > 5:
                axes.text(place, below + height / 2, str(worker), ha="center", va="center", color="white", fontsize=8)
        left = left + width
    axes.set_xticks(range(len(left)), [_short(server) for server in left.index], fontsize=8)
    axes.set_ylabel("% of the samples, by worker")
    axes.set_title("who computes when worker 3 is slow", fontsize=9)


def backup(family: Family) -> Figure:
    """Draw the time of an update without and with one backup worker, and what a slow worker makes of it."""
    figure = Figure((_WIDTH, 3.4), layout="constrained")
    for axes, parts, what in zip(
        figure.subplots(1, 2),
        (OF_ALL, OF_SYNCHRONOUS),
        ("four ranks on this machine's cores", "as if each worker had a device of its own"),
        strict=True,
    ):
        update_times(axes, family, parts)
        axes.set_title(what, fontsize=10)
    return figure


def update_times(axes: Axes, family: Family, parts: tuple[str, str]) -> None:
    """Draw the ms of an update, a pair of bars for b = 0 and for b = 1; a dashed line is 1.2 times the pale one."""
    equal, slow = (family.runs[family.runs["part"] == part].groupby("server")["step_s"] for part in parts)
    _pairs(axes, family, "step_s", parts, SYNCHRONOUS, 1000)
    for place, server in enumerate(SYNCHRONOUS):
        base = equal.mean()[server]
        axes.hlines(1200 * base, place - 0.42, place + 0.42, color="#222222", lw=1, ls="--")
        times = f"{slow.mean()[server] / base:.2f} times"
        axes.annotate(
            times, (place + 0.2, 1000 * max(slow.max()[server], 1.2 * base)), (0, 4), textcoords="offset points",
            ha="center", fontsize=9,
        )  # fmt: skip
    axes.set_xticks(range(2), ["b = 0", "b = 1"])
    axes.set(ylabel="ms per update", ylim=(0, 1.15 * axes.get_ylim()[1]))


def _pairs(
    axes: Axes,
    family: Family,
    column: str,
    parts: tuple[str, ...] = OF_ALL,
    servers: tuple[str, ...] = tuple(SERVERS),
    scale: float = 1,
) -> None:
    """Draw two bars a server, of the runs with equal workers (pale) and with a slow one."""
    for place, server in enumerate(servers):
        for part, aside, alpha in zip(parts, (-0.2, 0.2), (0.45, 1.0), strict=True):
            rows = family.runs[(family.runs["server"] == server) & (family.runs["part"] == part)]
            _bar(axes, place + aside, rows[column] * scale, colour_of(server), alpha)
    axes.set_xticks(range(len(servers)), [_short(server) for server in servers], fontsize=8)


def _bar(axes: Axes, place: float, values: pd.Series, colour: str, alpha: float = 1.0) -> None:
    mean = values.mean()
    axes.bar(place, mean, 0.38, color=colour, alpha=alpha)
    axes.errorbar(place, mean, [[mean - values.min()], [values.max() - mean]], color="#222222", capsize=2, lw=1)


def lost(family: Family) -> Figure:
    """Draw how many of the updates of several clients a server has kept."""
    figure = Figure((_WIDTH, 3.0), layout="constrained")
    kept(figure.subplots(), family)
    return figure


def kept(axes: Axes, family: Family) -> None:
    """Draw a pair of bars for each number of clients: the % of the updates that was kept."""
    share = 100 * family.lost["kept"] / family.lost["made"]
    numbers = sorted(map(int, family.lost["clients"].unique()))
    for mode, aside in zip(MODES, (-0.2, 0.2), strict=True):
        colour, name = MODES[mode]
        for place, n in enumerate(numbers):
            values = share[(family.lost["mode"] == mode) & (family.lost["clients"] == n)]
            _bar(axes, place + aside, values, colour)
        axes.bar(0, 0, color=colour, label=name)
    axes.set_xticks(range(len(numbers)), [f"{n} client" + "s" * (n > 1) for n in numbers])
    axes.set(ylabel="% of the updates kept", ylim=(0, 135), yticks=range(0, 101, 25))
    axes.set_title("updates that a server keeps", fontsize=9)
    axes.legend(fontsize=8, loc="upper right", ncols=1)


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5, **DASHED)
