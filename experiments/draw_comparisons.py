"""Figures of the strategies against the built-ins, and timelines."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from experiments.cases import BATCH, FAMILY, LINES, STRONG_2, TIMELINES, WEAK_LINES, Setup, weak
from experiments.drawing import COLOURS, NAMES, entitle, legend_below, line, ranks_of, sheet, stack, title_of, whiskers
from experiments.measured import Results, folder, pick, seconds_to
from experiments.store import TIMELINE, Store
from records import timeline
from records.errors import UsageError
from records.events import PHASES
from records.files import load_events
from records.legends import DASHED
from records.tables import SERVER, applied, worker_spans

SIZES = {"cnn": "CNN, 108 thousand parameters", "mlp": "MLP, 5.8 million parameters"}
TARGET, TARGET_OF_SIZES = 0.87, 0.65  # accuracies that the scaling figure times
_MEASURES = {"accuracy": ("accuracy", "held-out accuracy, %"), "train_loss": ("loss", "training loss")}
_AGAINST = {"epoch": ("epochs", "epoch"), "seconds": ("seconds", "seconds of training")}
_WAYS = ((LINES, Setup, f"strong: {BATCH} samples a step"), (WEAK_LINES, weak, f"weak: {BATCH // 2} samples a worker"))


def _below(setup: Setup, width: int = 12) -> str:
    name = textwrap.wrap(NAMES[setup.strategy], width, break_on_hyphens=False)
    return "\n".join(name if setup.strategy == "single" else [*name, ranks_of(setup)])


def curves(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw accuracy and loss against epochs (left) and against seconds (right)."""
    figure, grid = sheet(6.2, 2, 2)
    for row, measure in zip(grid, _MEASURES, strict=True):
        for axes, x in zip(row, _AGAINST, strict=True):
            _against(axes, results, setups, x, measure)
    legend_below(figure, grid[0][0])
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
    entitle(axes, f"{what} against {by}", xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=x == "epoch"))
    if x == "seconds":
        axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def time_by_phase(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw where the seconds of an epoch go, one bar a setup and role."""
    figure, axes = sheet(1.4 + 0.6 * len(setups))
    figure.legend(
        handles=_phases(axes, results, setups), loc="outside lower center", ncols=7, frameon=False, fontsize=8.5
    )
    return figure


def _phases(axes: Axes, results: Results, setups: Sequence[Setup]) -> list[Patch]:
    """Draw one bar a setup and role: the mean seconds of an epoch in each phase; return the legend's patches."""
    rows: list[dict[str, Any]] = []
    for setup in setups:
        roles = pick(results.phases, setup)
        for role, seconds in roles.groupby("role"):
            means = {phase: float(seconds[f"{phase}_s"].fillna(0).mean()) for phase in PHASES}
            means["rest"] = max(0.0, float(seconds["epoch_s"].mean()) - sum(means.values()))
            rows.append(means | {"label": _below(setup, 30) + (f": {role}" if roles["role"].nunique() > 1 else "")})
    table = pd.DataFrame(rows)
    stack(axes, table.index, table[list(PHASES)], [timeline.COLOURS[phase] for phase in PHASES], height=0.7)
    left = table[list(PHASES)].sum(axis=1)
    axes.barh(table.index, table["rest"], 0.7, left, color="white", edgecolor="#bbbbbb", lw=0.6)
    axes.set_yticks(table.index, table["label"], fontsize=8)
    axes.invert_yaxis()
    entitle(axes, f"where an epoch's time goes ({setups[0].model.upper()})", xlabel="seconds per epoch")
    patches = [Patch(color=timeline.COLOURS[phase], label=phase) for phase in PHASES if phase != "compress"]
    return [*patches, Patch(facecolor="white", edgecolor="#bbbbbb", label="outside any phase")]


def bytes_by_rank(results: Results, setups: Sequence[Setup]) -> Figure:
    """Draw the MB that each rank sends in a step."""
    figure, axes = sheet(2.8)
    _traffic(axes, results, setups)
    return figure


def _traffic(axes: Axes, results: Results, setups: Sequence[Setup]) -> None:
    """Draw one bar a rank, one group of bars a setup: the MB that the rank sends in a step."""
    groups: dict[float, str] = {}
    left = 0.0
    for setup in setups:
        sent = pick(results.ranks, setup).groupby(["rank", "role"], as_index=False)["mb_sent"].mean()
        if sent.empty:
            continue
        for role, rows in sent.groupby("role"):
            colour = "#c25b4e" if role == SERVER else "#3b6ea5"
            axes.bar(left + rows["rank"], rows["mb_sent"], 0.8, color=colour, label=str(role))
        formula = "" if pick(results.runs, setup)["counted"].all() else "\n(formula)"
        groups[left + (len(sent) - 1) / 2] = _below(setup) + formula
        left += len(sent) + 1
    axes.set_xticks(list(groups), list(groups.values()), fontsize=8)
    axes.set_ylabel("MB sent per step", fontsize=9)
    axes.set_title(f"what each rank sends ({setups[0].model.upper()})", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes.legend(named.values(), named.keys(), fontsize=8)


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
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.2), "ncols": 4, "frameon": False}
    bottom[0].legend(handles=_phases(bottom[0], results, compared["mlp"]), fontsize=8, **place)
    _traffic(bottom[1], results, sent)
    return figure


def scaling(results: Results) -> Figure:
    """Draw epoch time and time to an accuracy against ranks (strong, weak) and against the training-set size."""
    figure, (times, reached) = sheet(5.4, 2, 3)
    for column, (_, _, name) in enumerate(_WAYS):
        _against_ranks(times[column], column, _epoch_s(results), name)
        _against_ranks(reached[column], column, lambda setup: seconds_to(results, TARGET, setup))
    _against_size(times[2], results, _epoch_s(results), "training set, two workers")
    _against_size(reached[2], results, lambda setup: seconds_to(results, TARGET_OF_SIZES, setup))
    for axes, below, target in zip(times, reached, (TARGET, TARGET, TARGET_OF_SIZES), strict=True):
        axes.set_ylabel("seconds per epoch")
        entitle(below, f"time to {100 * target:.0f} % accuracy", ylabel=f"seconds to {100 * target:.0f} %")
    legend_below(figure, times[0])
    return figure


def scaling_summary(results: Results) -> Figure:
    """Draw the README's figure: epoch time against ranks, strong and weak."""
    figure, grid = sheet(3.4, 1, 2, sharey=True)
    for way, (axes, (_, _, name)) in enumerate(zip(grid, _WAYS, strict=True)):
        _against_ranks(axes, way, _epoch_s(results), name)
    grid[0].set_ylabel("seconds per epoch")
    legend_below(figure, grid[0])
    return figure


def _epoch_s(results: Results) -> Callable[[Setup], pd.Series]:
    return lambda setup: pick(results.runs, setup)["epoch_s"]


def _against_ranks(axes: Axes, way: int, values: Callable[[Setup], pd.Series], title: str = "") -> None:
    """Draw what `values` gives for a setup, one line a strategy, against the number of ranks in one of _WAYS."""
    lines, make, _ = _WAYS[way]
    missed = []
    for strategy, numbers in lines.items():
        aside = 0.06 * (list(LINES).index(strategy) - 2)  # whiskers beside, not over, one another
        missed += _line(axes, strategy, {n + aside: values(make(strategy, n)) for n in numbers}, "{}, {:.0f} ranks")
    axes.set_xticks([1, 2, 3, 4])
    entitle(axes, title, xlabel="ranks", xlim=(0.8, 4.2), ylim=(0, None))
    _note(axes, missed)


def _against_size(axes: Axes, results: Results, values: Callable[[Setup], pd.Series], title: str = "") -> None:
    """Draw what `values` gives for a setup, one line a strategy, against the size of the training set."""
    missed: list[str] = []
    every: set[int] = set()
    for setup in STRONG_2:
        alike = results.runs.query("strategy == @setup.strategy and n_gpus == @setup.n_gpus and model == @setup.model")
        sizes = alike.groupby("samples")["train_size"].first()
        measured = {size: values(replace(setup, train_size=option)) for size, option in sizes.items()}
        missed += _line(axes, setup.strategy, measured, "{}, {:,} samples")
        every |= set(sizes.index)
    axes.set(xscale="log", yscale="log" if len(missed) < len(every) * len(STRONG_2) else "linear")
    axes.set_xticks(sorted(every), [f"{size:,}" for size in sorted(every)])
    axes.xaxis.set_minor_locator(LogLocator(subs=[]))
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(LogLocator(subs=[]))
    entitle(axes, title, xlabel="training samples")
    _note(axes, missed)


def _line(axes: Axes, strategy: str, measured: dict[Any, pd.Series], name: str) -> list[str]:
    """Draw a line through the means, with their ranges; return the names of the points that some seed did not reach."""
    reached = {x: values for x, values in measured.items() if len(values) and values.notna().all()}
    style = {"none": ":"}.get(strategy, "--" if strategy.endswith("_builtin") else "-")
    means = pd.Series({x: values.mean() for x, values in reached.items()}, dtype=float)
    axes.errorbar(
        means.index, means, whiskers(*reached.values()), fmt="o" + style, color=COLOURS[strategy], ms=4, capsize=2,
        lw=1.5, label=NAMES[strategy],
    )  # fmt: skip
    short = NAMES[strategy].split(" (")[0]
    return [name.format(short, x) for x, values in measured.items() if len(values) and x not in reached]


def _note(axes: Axes, missed: Sequence[str]) -> None:
    axes.grid(alpha=0.3)
    if missed:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.15 * (high - low))  # room above the data
        text = "not reached by every seed:\n" + "\n".join(missed)
        axes.text(0.03, 0.97, text, transform=axes.transAxes, va="top", fontsize=8, color="#555555")


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
    at = pushes["t0"][(pushes["version_applied"] - pushes["version_read"]).idxmax()]
    for first in range(1, int(worker_spans(events, roles)["step"].max()) + 2 - n_steps):
        start, stop = timeline.window(events, roles, first, n_steps)
        if at < start + 0.9 * (stop - start):  # at the edge its label would be cut
            return first
    return timeline.middle(events, roles, n_steps)


def _events(directory: Path, experiment: str, strategy: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the kept events of a short run, and the roles of its ranks."""
    store = Store(directory, experiment)
    name = next((name for name in store.metadata if name.startswith(f"{TIMELINE}-{strategy}-")), None)
    if name is None:
        raise UsageError(f"no timeline of {strategy} in {directory}: python experiments/run.py {experiment} makes it")
    return load_events(store.events_of(name)), store.metadata[name]["roles"]
