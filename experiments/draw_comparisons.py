"""Figures of the strategies against the built-ins, and timelines."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from experiments import drawing
from experiments.cases import BATCH, FAMILY, LINES, STRONG_2, TIMELINES, WEAK_LINES, Setup, weak
from experiments.drawing import COLOURS, NAMES, finish, legend_below, line, logarithmic, sheet, title_of, whiskers
from experiments.measured import Results, folder, pick, seconds_to
from experiments.real import TIMELINE, Runs, strategy_class
from records import timeline
from records.errors import UsageError
from records.events import PHASES
from records.files import load_events
from records.plot import DASHED
from records.tables import SERVER, applied, worker_spans

SIZES = {"cnn": "CNN, 108 thousand parameters", "mlp": "MLP, 5.8 million parameters"}
TARGET, TARGET_OF_SIZES = 0.87, 0.65  # accuracies that the scaling figure times
_MEASURES = {"accuracy": ("accuracy", "held-out accuracy, %"), "train_loss": ("loss", "training loss")}
_AGAINST = {"epoch": ("epochs", "epoch"), "seconds": ("seconds", "seconds of training")}
_ROLES = {SERVER: "#c25b4e", "worker": "#3b6ea5"}
Points = Mapping[str, Mapping[int, Setup]]  # by strategy and x


def _below(setup: Setup, width: int = 12) -> str:
    name = textwrap.wrap(NAMES[setup.strategy], width, break_on_hyphens=False)
    return "\n".join(name if setup.strategy == "single" else [*name, setup.ranks])


def curves(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw accuracy and loss against epochs (left) and against seconds (right)."""
    figure, grid = sheet(6.2, 2, 2)
    for axes, (measure, x) in zip(grid.flat, product(_MEASURES, _AGAINST), strict=True):
        _against(axes, results, setups, x, measure)
    legend_below(figure, grid[0][0], 4)
    return figure


def _against(axes: Axes, results: Results, setups: Sequence[Setup], x: str, measure: str) -> None:
    """Draw `measure` against `x`; a strategy's second setup, with other ranks, is drawn paler."""
    seen: set[str] = set()
    for setup in setups:
        # Two strategies that take the same steps lie on one another: the dashes let both be seen.
        style = {"linestyle": "--" if setup.strategy.endswith("_builtin") else "-", "color": COLOURS[setup.strategy]}
        paler = {"marker": "s", "alpha": 0.5} if setup.strategy in seen else {}
        seen.add(setup.strategy)
        line(axes, pick(results.epochs, setup), x, measure, "epoch", label=title_of(setup), **style, **paler)
    (what, ylabel), (by, xlabel) = _MEASURES[measure], _AGAINST[x]
    finish(axes, f"{what} against {by}", xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=x == "epoch"))
    if x == "seconds":
        axes.set_xlim(left=0)


def time_by_phase(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw where the seconds of an epoch go, one bar a setup and role."""
    figure, axes = sheet(1.4 + 0.6 * len(setups))
    _phases(axes, results, setups)
    legend_below(figure, axes, 7)
    return figure


def _phases(axes: Axes, results: Results, setups: Sequence[Setup]) -> None:
    """Draw one bar a setup and role: the mean seconds of an epoch in each phase."""
    bars = {}
    for setup in setups:
        roles = pick(results.phases, setup).set_index("role")[[*(f"{phase}_s" for phase in PHASES), "epoch_s"]]
        for role, seconds in roles.groupby(level="role").mean().iterrows():
            bars[_below(setup, 30) + (f": {role}" if roles.index.nunique() > 1 else "")] = seconds.fillna(0)
    table = pd.DataFrame(bars).T.set_axis([*PHASES, "rest"], axis=1)
    table["rest"] = (table["rest"] - table[list(PHASES)].sum(axis=1)).clip(lower=0)
    drawing.stack(axes, table[list(PHASES)], timeline.COLOURS, height=0.7)
    left, edge = table[list(PHASES)].sum(axis=1), "#bbbbbb"
    axes.barh(table.index, table["rest"], 0.7, left, label="outside any phase", color="white", edgecolor=edge, lw=0.6)
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()
    finish(axes, f"where an epoch's time goes ({setups[0].model.upper()})", "x", xlabel="seconds per epoch")


def bytes_by_rank(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw the MB that each rank sends in a step."""
    figure, axes = sheet(2.8)
    _traffic(axes, results, setups)
    return figure


def _traffic(axes: Axes, results: Results, setups: Sequence[Setup]) -> None:
    """Draw one bar a rank, one group of bars a setup: the MB that the rank sends in a step."""
    groups: dict[float, str] = {}
    left, roles = 0.0, set[str]()
    for setup in setups:
        sent = pick(results.ranks, setup).groupby(["rank", "role"], as_index=False)["mb_sent"].mean()
        if sent.empty:
            continue
        axes.bar(left + sent["rank"], sent["mb_sent"], 0.8, color=sent["role"].map(_ROLES))
        formula = "" if pick(results.runs, setup)["counted"].all() else "\n(formula)"
        groups[left + (len(sent) - 1) / 2] = _below(setup) + formula
        left, roles = left + len(sent) + 1, roles | {*sent["role"]}
    axes.set_xticks(list(groups), list(groups.values()), fontsize=8)
    finish(axes, f"what each rank sends ({setups[0].model.upper()})", "y", ylabel="MB sent per step")
    axes.legend(handles=[Patch(color=_ROLES[role], label=role) for role in sorted(roles)], fontsize=8)


def overview(results: Results, compared: Mapping[str, Sequence[Setup]], sent: Sequence[Setup]) -> Figure:
    """Draw the README's figure: accuracy against seconds of both networks, where the time goes, and MB by rank."""
    figure, (top, bottom) = sheet(6.4, 2, 2)
    full = all(entry["options"]["dataset"] == "fashion_mnist" for entry in results.metadata.values())
    for axes, (model, setups) in zip(top, compared.items(), strict=True):
        _against(axes, results, setups, "seconds", "accuracy")
        axes.set_title(SIZES[model] if full else model.upper(), fontsize=10)
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.1 * len(axes.get_lines()) * (high - low), high)  # room for the legend below the data
        axes.legend(fontsize=8, loc="lower right", **DASHED)
    _phases(bottom[0], results, compared["mlp"])
    bottom[0].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=4, frameon=False)
    _traffic(bottom[1], results, sent)
    return figure


# Scaling


def scaling(results: Results) -> Figure:
    """Draw epoch time and time to an accuracy against ranks (strong, weak) and against the training-set size."""
    figure, (times, reached) = sheet(5.4, 2, 3)
    panels = [(*way, TARGET) for way in _ways()] + [("training set, two workers", _by_size(results), TARGET_OF_SIZES)]
    for above, below, (title, points, target) in zip(times, reached, panels, strict=True):
        percent, to_target = f"{100 * target:.0f} %", partial(seconds_to, results, target)
        _scaled(above, points, _epoch_s(results), title, "seconds per epoch")
        _scaled(below, points, to_target, f"time to {percent} accuracy", f"seconds to {percent}")
    legend_below(figure, times[0])
    return figure


def scaling_summary(results: Results) -> Figure:
    """Draw the README's figure: epoch time against ranks, strong and weak."""
    figure, grid = sheet(3.4, 1, 2, sharey=True)
    for axes, (title, points), ylabel in zip(grid, _ways(), ("seconds per epoch", ""), strict=True):
        _scaled(axes, points, _epoch_s(results), title, ylabel)
    legend_below(figure, grid[0])
    return figure


def _ways() -> list[tuple[str, Points]]:
    """Return both ways of scaling: a title, and the setups by strategy and number of ranks."""
    strong = {strategy: {n: Setup(strategy, n) for n in ranks} for strategy, ranks in LINES.items()}
    of_workers = {strategy: {n: weak(strategy, n) for n in ranks} for strategy, ranks in WEAK_LINES.items()}
    return [(f"strong: {BATCH} samples a step", strong), (f"weak: {BATCH // 2} samples a worker", of_workers)]


def _by_size(results: Results) -> Points:
    """Return the setups of two workers by strategy and number of training samples."""
    sizes = results.runs[results.runs["model"] == "cnn"].groupby("samples")["train_size"].first()
    return {one.strategy: {n: replace(one, train_size=size) for n, size in sizes.items()} for one in STRONG_2}


def _epoch_s(results: Results) -> Callable[[Setup], pd.Series]:
    return lambda setup: pick(results.runs, setup)["epoch_s"]


def _scaled(axes: Axes, points: Points, values: Callable[[Setup], pd.Series], title: str, ylabel: str) -> None:
    """Draw a line a strategy through the means of what `values` gives, with their ranges; name what has none."""
    missed, ranks = [], max(max(by_x) for by_x in points.values()) < 100
    for number, (strategy, by_x) in enumerate(points.items()):
        measured = {x: of for x, setup in by_x.items() if len(of := values(setup))}
        reached = {x: of for x, of in measured.items() if of.notna().all()}
        places = [x + 0.06 * (number - 2) if ranks else x for x in reached]  # whiskers beside, not over, one another
        style = {"none": ":"}.get(strategy, "--" if strategy.endswith("_builtin") else "-")
        axes.errorbar(
            places, [of.mean() for of in reached.values()], whiskers(*reached.values()), fmt="o" + style,
            color=COLOURS[strategy], ms=4, capsize=2, lw=1.5, label=NAMES[strategy],
        )  # fmt: skip
        unit = "ranks" if ranks else "samples"
        missed += [f"{NAMES[strategy].split(' (')[0]}, {x:,} {unit}" for x in measured if x not in reached]
    if ranks:
        finish(axes, title, xlabel="ranks", ylabel=ylabel, xticks=[1, 2, 3, 4], xlim=(0.8, 4.2), ylim=(0, None))
    else:
        logarithmic(axes, "y", (1, 2, 5))
        finish(axes, title, xlabel="training samples", ylabel=ylabel, xscale="log")
        sizes = sorted({x for by_x in points.values() for x in by_x})
        axes.set_xticks(sizes, [f"{x:,}" for x in sizes])
        axes.xaxis.set_minor_locator(LogLocator(subs=[]))
    if missed:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.15 * (high - low))  # room above the data
        text = "not reached by every seed:\n" + "\n".join(missed)
        axes.text(0.03, 0.97, text, transform=axes.transAxes, va="top", fontsize=8, color="#555555")


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
    drawn = timeline.draw(axes, events, roles, _around_the_stalest(events, roles, 2), 2)
    axes.set_title("asynchronous server, worker 3 three times as slow: each gradient's versions", fontsize=10)
    timeline.legend(figure, drawn, versions=True)
    return figure


def _around_the_stalest(events: pd.DataFrame, roles: list[str], n_steps: int) -> int:
    """Return the first of `n_steps` steps in which the stalest gradient of the run is applied."""
    pushes = applied(events)
    at = pushes["t0"][pushes["staleness"].idxmax()]
    for first in range(1, int(worker_spans(events, roles)["step"].max()) + 2 - n_steps):
        start, stop = timeline.window(events, roles, first, n_steps)
        if at < start + 0.9 * (stop - start):  # at the edge its label would be cut
            return first
    return timeline.middle(events, roles, n_steps)


def _events(directory: Path, experiment: str, strategy: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the kept events of a short run, and the roles of its ranks."""
    store = Runs(directory, experiment)
    name = next((name for name in store.runs if name.startswith(f"{TIMELINE}-{strategy}-")), None)
    if name is None:
        raise UsageError(f"no timeline of {strategy} in {directory}: python experiments/run.py {experiment} makes it")
    roles = strategy_class(strategy)().roles(store.runs[name]["options"]["n_gpus"])
    return load_events(store.events_of(name)), roles
