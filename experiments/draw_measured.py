"""Figures of the measurements on this machine: strategies against the built-ins, servers that wait less, timelines."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from experiments import drawing
from experiments.cases import BATCH, FAMILY, FAMILY_SERVERS, LINES, OF_ALL, STRONG, TIMELINES, WEAK, Setup
from experiments.drawing import COLOURS, NAMES, bars, finish, legend_below, line, lines, sheet, stack
from experiments.measured import Results, Servers, folder, pick
from experiments.real import TIMELINE, Runs, strategy_class
from gradwire.core.records.errors import UsageError
from gradwire.core.records.events import PHASES
from gradwire.core.records.tables import SERVER, applied
from gradwire.pictures import timeline
from gradwire.pictures.plot import DASHED
from gradwire.results import load_events, worker_spans

_MEASURES = {"accuracy": ("accuracy", "held-out accuracy, %"), "train_loss": ("loss", "training loss")}
_AGAINST = {
    "epoch": ("epochs", "epoch"), "seconds": ("seconds", "seconds of training"),
    "updates": ("updates", "updates of the server"), "mb": ("MB", "MB sent by all ranks"),
}  # fmt: skip
_ROLES = {SERVER: "#c25b4e", "worker": "#3b6ea5"}
_OUTSIDE = "outside any phase"
Panel = tuple[Figure, Any]  # of a larger figure, with its axes; without one, a figure of its own is drawn


def _below(setup: Setup, width: int = 12) -> str:
    name = textwrap.wrap(NAMES[setup.strategy], width, break_on_hyphens=False)
    return "\n".join(name if setup.strategy == "single" else [*name, setup.ranks])


def curves(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw accuracy and loss against epochs (left) and against seconds (right)."""
    figure, grid = sheet(6.2, 2, 2)
    for axes, (measure, x) in zip(grid.flat, product(_MEASURES, ("epoch", "seconds")), strict=True):
        _against(axes, results, setups, x, measure)
    legend_below(figure, grid[0][0], 4)
    return figure


def _against(axes: Axes, results: Results, setups: Sequence[Setup], x: str, measure: str) -> None:
    """Draw `measure` against `x`; a strategy's second setup, with other ranks, is drawn paler."""
    seen: set[str] = set()
    for setup in setups:
        style = {"linestyle": drawing.DASHES.get(setup.strategy, "-"), "color": COLOURS[setup.strategy]}
        paler = {"marker": "s", "alpha": 0.5} if setup.strategy in seen else {}
        seen.add(setup.strategy)
        label = NAMES[setup.strategy] + ("" if setup.strategy == "single" else f", {setup.ranks}")
        line(axes, pick(results.epochs, setup), x, measure, "epoch", label=label, **style, **paler)
    (what, ylabel), (by, xlabel) = _MEASURES[measure], _AGAINST[x]
    finish(axes, f"{what} against {by}", xlabel=xlabel, ylabel=ylabel, xlim=(0, None) if x == "seconds" else None)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=x == "epoch"))


def time_by_phase(results: Results, setups: Sequence[Setup], on: Panel | None = None) -> Figure:
    """Draw where the seconds of an epoch go, one bar a setup and role: the mean in each phase."""
    figure, axes = on or sheet(1.4 + 0.6 * len(setups))
    bars = {}
    for setup in setups:
        roles = pick(results.phases, setup).set_index("role")[[*(f"{phase}_s" for phase in PHASES), "epoch_s"]]
        for role, seconds in roles.groupby(level="role").mean().iterrows():
            bars[_below(setup, 30) + (f": {role}" if roles.index.nunique() > 1 else "")] = seconds.fillna(0)
    table = pd.DataFrame(bars).T.set_axis([*PHASES, _OUTSIDE], axis=1)
    table[_OUTSIDE] = (table[_OUTSIDE] - table[list(PHASES)].sum(axis=1)).clip(lower=0)
    stack(axes, table, timeline.COLOURS | {_OUTSIDE: "white"}, linewidth=0.5)
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()
    finish(axes, f"where an epoch's time goes ({setups[0].model.upper()})", "x", xlabel="seconds per epoch")
    if not on:
        legend_below(figure, axes, 7)
    return figure


def bytes_by_rank(results: Results, setups: Sequence[Setup], on: Panel | None = None) -> Figure:
    """Draw the MB that each rank sends in a step: one bar a rank, one group of bars a setup."""
    figure, axes = on or sheet(2.8)
    groups: dict[float, str] = {}
    left, roles = 0.0, set[str]()
    for setup in setups:
        sent = pick(results.ranks, setup).groupby(["rank", "role"], as_index=False)["mb_sent"].mean()
        if sent.empty:  # of another experiment
            continue
        axes.bar(left + sent["rank"], sent["mb_sent"], 0.8, color=sent["role"].map(_ROLES))
        formula = "" if pick(results.runs, setup)["counted"].all() else "\n(formula)"
        groups[left + (len(sent) - 1) / 2] = _below(setup) + formula
        left, roles = left + len(sent) + 1, roles | {*sent["role"]}
    axes.set_xticks(list(groups), list(groups.values()), fontsize=8)
    finish(axes, f"what each rank sends ({setups[0].model.upper()})", "y", ylabel="MB sent per step")
    if len(roles) > 1:
        axes.legend(handles=[Patch(color=_ROLES[role], label=role) for role in sorted(roles)], fontsize=8)
    return figure


def overview(results: Results, compared: Mapping[str, Sequence[Setup]], sent: Sequence[Setup]) -> Figure:
    """Draw the README's figure: accuracy against seconds of both networks, where the time goes, and MB by rank."""
    figure, (top, bottom) = sheet(6.4, 2, 2)
    for axes, (model, setups) in zip(top, compared.items(), strict=True):
        _against(axes, results, setups, "seconds", "accuracy")
        axes.set_title(model.upper(), fontsize=10)
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.1 * len(axes.get_lines()) * (high - low), high)  # room for the legend below the data
        axes.legend(fontsize=8, loc="lower right", **DASHED)
    time_by_phase(results, compared["mlp"], (figure, bottom[0]))
    bottom[0].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=4, frameon=False)
    bytes_by_rank(results, sent, (figure, bottom[1]))
    return figure


def scaling(results: Results) -> Figure:
    """Draw epoch time against ranks: strong and weak scaling."""
    figure, grid = sheet(3.4, 1, 2, sharey=True)
    titles = f"strong: {BATCH} samples a step", f"weak: {BATCH // 2} samples a worker"
    for axes, title, setups in zip(grid, titles, (STRONG, WEAK), strict=True):
        runs = pd.concat([pick(results.runs, setup) for setup in setups])
        lines(axes, runs, "n_gpus", "epoch_s", {name: COLOURS[name] for name in LINES}, of="strategy")
        finish(axes, title, xlabel="ranks", xticks=[1, 2, 3, 4], ylim=(0, None))
    grid[0].set_ylabel("seconds per epoch")
    legend_below(figure, grid[0])
    return figure


# Servers that wait less

_PARTS = {"final": "three equal workers", "slow": "worker 3 five times as slow"}
_MODES = {"write": "#c25b4e", "push": "#5a9e6f"}
_SHORT = {"sync": "sync", "backup": "backup", "bounded": "bound", "async": "async", "downpour": "Down-\npour"}
_STALE = {server: COLOURS[server] for server, strategy in FAMILY_SERVERS.items() if strategy.traits.asynchronous}
_WORKERS = {1: "#7fa8d1", 2: "#2c5282", 3: "#c25b4e"}


def servers(results: Servers) -> Figure:
    """Draw the README's figure: accuracy against everything, staleness, a slow worker, lost updates."""
    figure, (above, below) = sheet(6.0, 2, 3)
    for axes, x in zip(above, ("updates", "seconds", "mb"), strict=True):
        _accuracy(axes, results, x)
    equal = results.staleness[results.staleness["part"] == "final"]
    _shares(below[0], equal, "server", _STALE, "staleness, equal workers")
    _epoch_seconds(below[1], results)
    lost(results, (figure, below[2]))
    legend_below(figure, above[0])
    return figure


def straggler(results: Servers) -> Figure:
    """Draw what one slow worker does: to the time of an epoch, and to accuracy over time."""
    figure, (left, right) = sheet(3.6, 1, 2)
    _epoch_seconds(left, results)
    _accuracy(right, results, "seconds", "slow", _PARTS["slow"])
    legend_below(figure, right)
    return figure


def _accuracy(axes: Axes, results: Servers, x: str, part: str = "final", title: str | None = None) -> None:
    """Draw accuracy against `x`, one line a server, a point an epoch."""
    colours = {server: COLOURS[server] for server in FAMILY_SERVERS}
    lines(axes, results.epochs[results.epochs["part"] == part], x, "accuracy", colours, "epoch", "server")
    by, xlabel = _AGAINST[x]
    finish(axes, title or f"accuracy against {by}", xlabel=xlabel, ylabel="held-out accuracy, %", xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(4))


def staleness(results: Servers) -> Figure:
    """Draw how stale each worker's gradients were, with equal workers (above) and with a slow one (below)."""
    figure, grid = sheet(4.6, len(_PARTS), len(_STALE), sharex="col", squeeze=False)
    of = results.staleness.groupby(["part", "server"])
    for axes, (part, server) in zip(grid.flat, product(_PARTS, _STALE), strict=True):
        _shares(axes, of.get_group((part, server)), "worker", _WORKERS, f"{NAMES[server]}\n{_PARTS[part]}")
    legend_below(figure, grid[0][-1], 3)
    return figure


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
    runs = results.runs[results.runs["part"].isin(OF_ALL)].set_index(["server", "part"])
    bars(axes, runs["epoch_s"].loc[list(_SHORT)], dict(zip(OF_ALL, drawing.PALE_AND_DARK, strict=True)))
    axes.set_xticks(range(len(_SHORT)), _SHORT.values(), fontsize=8)
    finish(axes, "pale: equal workers,\ndark: one 5 times as slow", "y", ylabel="seconds per epoch")


def lost(results: Servers, on: Panel | None = None) -> Figure:
    """Draw which % of the updates of several clients a server has kept, a pair of bars for each number of clients."""
    figure, axes = on or sheet(3.0)
    share = results.lost.assign(kept=100 * results.lost["kept"] / results.lost["made"])
    means = bars(axes, share.set_index(["clients", "mode"])["kept"], _MODES)
    axes.set_xticklabels([f"{n} client{'s' * (n > 1)}" for n in means.index])
    finish(axes, "updates that a server keeps", "y", ylabel="% of the updates kept", ylim=(0, 135))
    axes.set_yticks(range(0, 101, 25))
    axes.legend(["read, modify, write back", "push the increment"], fontsize=8, loc="upper right")
    return figure


# Timelines


def timelines(directory: Path) -> Figure:
    """Draw two steps of a parameter server beside two of a ring, from the events that were kept. Raises OSError."""
    figure, grid = sheet(2.9, 1, 2, sharex=True)
    drawn, until = set(), 0.0
    for axes, strategy in zip(grid, TIMELINES, strict=True):
        events, roles = _events(directory, strategy, strategy)
        drawn |= timeline.draw(axes, events, roles, timeline.middle(events, roles, 2), 2)
        axes.set_title(NAMES[strategy], fontsize=10)
        until = max(until, axes.get_xlim()[1])
    grid[0].set_xlim(0, until)  # one scale, so that lengths can be compared
    timeline.legend(figure, drawn)
    return figure


def stale_timeline(directory: Path | None = None) -> Figure:
    """Draw some steps of the asynchronous server with a slow worker, from the events that were kept."""
    events, roles = _events(folder(directory), FAMILY, "async_param_server")
    figure, axes = sheet(3.8)
    pushes, spans = applied(events), worker_spans(events, roles)
    stalest = pushes["t0"][pushes["staleness"].idxmax()]
    first = int(spans["step"][spans["t0"] <= stalest].max())
    drawn = timeline.draw(axes, events, roles, first, 2)
    axes.set_title("asynchronous server, worker 3 three times as slow: each gradient's versions", fontsize=10)
    timeline.legend(figure, drawn, versions=True)
    return figure


def _events(directory: Path, experiment: str, strategy: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the kept events of a short run, and the roles of its ranks."""
    store = Runs(directory, experiment)
    name = next((name for name in store.runs if name.startswith(f"{TIMELINE}-{strategy}-")), None)
    if name is None:
        command = f"python experiments/run.py {experiment}"
        raise UsageError(f"no timeline of {strategy} in {directory}: {command} makes it")
    roles = strategy_class(strategy)().roles(store.runs[name]["options"]["n_gpus"])
    return load_events(store.events_of(name)), roles
