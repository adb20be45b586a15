"""How results are drawn: lines and bars are means over seeds, bands and whiskers the range of the seeds."""

import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from experiments.collect import Results, pick, seconds_to
from experiments.runs import BATCH, LINES, TWO_WORKERS, WEAK_LINES, Case, strategy_class, strong, weak
from records.events import PHASES
from records.legends import DASHED
from records.timeline import COLOURS as PHASE_COLOURS

NAMES = {
    "single": "one process",
    "param_server": "parameter server",
    "param_server_builtin": "DataParallel (built-in)",
    "ring_all_reduce": "ring all-reduce",
    "ring_all_reduce_builtin": "DDP (built-in)",
    "naive_all_reduce": "naive all-reduce",
    "none": "none (no communication)",
}
COLOURS = {
    "single": "#222222",
    "param_server": "#c25b4e",
    "param_server_builtin": "#8c6bb1",
    "ring_all_reduce": "#3b6ea5",
    "ring_all_reduce_builtin": "#d9903d",
    "naive_all_reduce": "#5a9e6f",
    "none": "#999999",
}
_OTHER_COLOURS = (
    "#2a9d8f", "#b5609b", "#8a6d3b", "#a3b18a", "#4f5d75", "#e0719e", "#7a3b2e", "#17becf", "#bcbd22", "#6a3d9a",
    "#b15928", "#66c2a5", "#fb6a4a", "#1b7837", "#3f007d", "#ce9c5c", "#7f9fc9", "#a50f15",
)  # fmt: skip
SIZES = {"cnn": "CNN, 108 thousand parameters", "mlp": "MLP, 5.8 million parameters"}
MEASURES = {"accuracy": "held-out accuracy, %", "train_loss": "training loss"}
_SERVER, _WORKER = "#c25b4e", "#3b6ea5"
_WIDTH = 9.0  # inches, at 100 dpi the width of a README
_WAYS = (
    (LINES, strong, f"strong: {BATCH} samples a step"),
    (WEAK_LINES, weak, f"weak: {BATCH // 2} samples a worker"),
)


def name_of(strategy: str) -> str:
    """Return how a strategy is called; without an entry in NAMES, by its own name in words."""
    return NAMES.get(strategy, in_words(strategy))


def colour_of(strategy: str) -> str:
    """Return the colour of a strategy; without an entry in COLOURS, always the same one of a cycle."""
    return COLOURS.get(strategy) or other_colour(strategy, ())


def in_words(name: str) -> str:
    """Return a name from the code as words."""
    return name.rpartition(":")[2].replace("_", " ")


def other_colour(name: str, others: Sequence[str]) -> str:
    """Return the colour of one of the `others`, which have none of their own: the same one in all figures."""
    place = others.index(name) if name in others else zlib.crc32(name.encode())
    return _OTHER_COLOURS[place % len(_OTHER_COLOURS)]


def ranks(case: Case) -> str:
    """Return how many processes a case has, in words."""
    n = len(strategy_class(case.strategy)().roles(case.n_gpus))  # DataParallel is one, whatever its --n_gpus
    return "1 process" if n == 1 else f"{n} ranks"


def title(case: Case) -> str:
    """Return how a case is called in a legend."""
    return name_of(case.strategy) + ("" if case.strategy == "single" else f", {ranks(case)}")


def _below(case: Case, width: int = 12) -> str:
    name = textwrap.wrap(name_of(case.strategy), width, break_on_hyphens=False)
    return "\n".join(name if case.strategy == "single" else [*name, ranks(case)])


def curves(results: Results, cases: Sequence[Case]) -> Figure:
    """Draw accuracy and loss against epochs (left) and against seconds (right)."""
    figure = Figure((_WIDTH, 6.2), layout="constrained")
    grid = figure.subplots(2, 2)
    for row, measure in zip(grid, MEASURES, strict=True):
        for axes, x in zip(row, ("epoch", "seconds"), strict=True):
            against(axes, results, cases, x, measure)
    _legend_below(figure, grid[0][0])
    return figure


def against(axes: Axes, results: Results, cases: Sequence[Case], x: str, measure: str) -> None:
    """Draw `measure` against `x` (epoch or seconds): the mean over seeds, the range as a band.

    A strategy's second case, with other ranks, is drawn paler.
    """
    scale = 100 if measure == "accuracy" else 1
    seen: set[str] = set()
    for case in cases:
        epochs = pick(results.epochs, case).groupby("epoch")
        values = epochs[measure].agg(["mean", "min", "max"]) * scale
        across = values.index if x == "epoch" else epochs["seconds"].mean()
        # Two strategies that take the same steps lie on one another: the dashes let both be seen.
        style = "--" if case.strategy.endswith("_builtin") else "-"
        marker, alpha = ("s", 0.5) if case.strategy in seen else ("o", 1.0)
        seen.add(case.strategy)
        colour = colour_of(case.strategy)
        axes.plot(across, values["mean"], style, color=colour, marker=marker, ms=4, alpha=alpha, label=title(case))
        axes.fill_between(across, values["min"], values["max"], color=colour, alpha=0.15 * alpha, lw=0)
    axes.set(xlabel="epoch" if x == "epoch" else "seconds of training", ylabel=MEASURES[measure])
    what = "accuracy" if measure == "accuracy" else "loss"
    axes.set_title(f"{what} against {'epochs' if x == 'epoch' else 'seconds'}", fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=x == "epoch"))
    if x == "seconds":
        axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def time_by_phase(results: Results, cases: Sequence[Case]) -> Figure:
    """Draw where the seconds of an epoch go, one bar a case and role."""
    figure = Figure((_WIDTH, 1.4 + 0.6 * len(cases)), layout="constrained")
    phases(figure.subplots(), results, cases)
    figure.legend(handles=_phase_patches(), loc="outside lower center", ncols=7, frameon=False, fontsize=8.5)
    return figure


def phases(axes: Axes, results: Results, cases: Sequence[Case]) -> None:
    """Draw one bar a case and role: the mean seconds of an epoch in each phase."""
    labels: list[str] = []
    for case in cases:
        roles = pick(results.phases, case)
        for role, seconds in roles.groupby("role"):
            labels.append(_below(case, 30) + (f": {role}" if roles["role"].nunique() > 1 else ""))
            bar: dict[str, Any] = {"y": len(labels) - 1, "height": 0.7}
            left = 0.0
            for phase in PHASES:
                width = float(seconds[f"{phase}_s"].fillna(0).mean())
                axes.barh(width=width, left=left, color=PHASE_COLOURS[phase], **bar)
                left += width
            rest = max(0.0, float(seconds["epoch_s"].mean()) - left)
            axes.barh(width=rest, left=left, color="white", edgecolor="#bbbbbb", lw=0.6, **bar)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds per epoch")
    axes.set_title(f"where an epoch's time goes ({cases[0].model.upper()})", fontsize=10)


def _phase_patches() -> list[Patch]:
    patches = [Patch(color=PHASE_COLOURS[phase], label=phase) for phase in PHASES if phase != "compress"]
    return [*patches, Patch(facecolor="white", edgecolor="#bbbbbb", label="outside any phase")]


def bytes_by_rank(results: Results, cases: Sequence[Case]) -> Figure:
    """Draw the MB that each rank sends in a step."""
    figure = Figure((_WIDTH, 2.8), layout="constrained")
    traffic(figure.subplots(), results, cases)
    return figure


def traffic(axes: Axes, results: Results, cases: Sequence[Case]) -> None:
    """Draw one bar a rank, one group of bars a case: the MB that the rank sends in a step."""
    groups: dict[float, str] = {}
    left = 0.0
    for case in cases:
        sent = pick(results.traffic, case).groupby(["rank", "role"], as_index=False)["mb_sent"].mean()
        if sent.empty:
            continue
        for role, rows in sent.groupby("role"):
            colour = _SERVER if role == "server" else _WORKER
            axes.bar(left + rows["rank"], rows["mb_sent"], 0.8, color=colour, label=str(role))
        formula = "" if pick(results.runs, case)["counted"].all() else "\n(formula)"
        groups[left + (len(sent) - 1) / 2] = _below(case) + formula
        left += len(sent) + 1
    axes.set_xticks(list(groups), list(groups.values()), fontsize=8)
    axes.set_ylabel("MB sent per step", fontsize=9)
    axes.set_title(f"what each rank sends ({cases[0].model.upper()})", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes.legend(named.values(), named.keys(), fontsize=8)


def is_full(results: Results) -> bool:
    """Return whether the results are those of the networks in SIZES, and not quick ones."""
    return all(entry["options"]["dataset"] == "fashion_mnist" for entry in results.metadata.values())


def overview(results: Results, cnn: Sequence[Case], mlp: Sequence[Case], sent: Sequence[Case]) -> Figure:
    """Draw the README's figure: accuracy against seconds, where the time goes, and MB by rank."""
    figure = Figure((_WIDTH, 6.4), layout="constrained")
    top, bottom = figure.subplots(2, 2)
    for axes, cases in ((top[0], cnn), (top[1], mlp)):
        against(axes, results, cases, "seconds", "accuracy")
        axes.set_title(SIZES[cases[0].model] if is_full(results) else cases[0].model.upper(), fontsize=10)
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.1 * len(axes.get_lines()) * (high - low), high)  # room for the legend below the data
        axes.legend(fontsize=8, loc="lower right", **DASHED)
    phases(bottom[0], results, mlp)
    place = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.2)}
    bottom[0].legend(handles=_phase_patches(), ncols=4, frameon=False, fontsize=8, **place)
    traffic(bottom[1], results, sent)
    return figure


def scaling(results: Results, target: float, target_of_sizes: float) -> Figure:
    """Draw epoch time and time to an accuracy against ranks (strong, weak) and against the training-set size."""
    figure = Figure((_WIDTH, 5.4), layout="constrained")
    times, reached = figure.subplots(2, 3)

    def epoch_s(case: Case) -> pd.Series:
        return pick(results.runs, case)["epoch_s"]

    for column, (lines, make, name) in enumerate(_WAYS):
        times[column].set_title(name, fontsize=10)
        against_ranks(times[column], lines, make, epoch_s)
        against_ranks(reached[column], lines, make, lambda case: seconds_to(results, target, case))
        reached[column].set_ylabel(f"seconds to {100 * target:.0f} %")
        reached[column].set_title(f"time to {100 * target:.0f} % accuracy", fontsize=10)
    times[2].set_title("training set, two workers", fontsize=10)
    against_size(times[2], results, epoch_s)
    against_size(reached[2], results, lambda case: seconds_to(results, target_of_sizes, case))
    reached[2].set_ylabel(f"seconds to {100 * target_of_sizes:.0f} %")
    reached[2].set_title(f"time to {100 * target_of_sizes:.0f} % accuracy", fontsize=10)
    for axes in times:
        axes.set_ylabel("seconds per epoch")
    _legend_below(figure, times[0])
    return figure


def scaling_summary(results: Results) -> Figure:
    """Draw the README's figure: epoch time against ranks, strong and weak."""
    figure = Figure((_WIDTH, 3.4), layout="constrained")
    for axes, (lines, make, name) in zip(figure.subplots(1, 2, sharey=True), _WAYS, strict=True):
        against_ranks(axes, lines, make, lambda case: pick(results.runs, case)["epoch_s"])
        axes.set_title(name, fontsize=10)
    figure.axes[0].set_ylabel("seconds per epoch")
    _legend_below(figure, figure.axes[0])
    return figure


def against_ranks(
    axes: Axes,
    lines: Mapping[str, Sequence[int]],
    make: Callable[[str, int], Case],
    values: Callable[[Case], pd.Series],
) -> None:
    """Draw what `values` gives for a case, one line a strategy, against the number of ranks."""
    missed = []
    for strategy, numbers in lines.items():
        aside = 0.06 * (list(LINES).index(strategy) - 2)  # whiskers beside, not over, one another
        measured = {n + aside: values(make(strategy, n)) for n in numbers}
        missed += _line(axes, strategy, measured, "{}, {:.0f} ranks")
    axes.set_xticks([1, 2, 3, 4])
    axes.set(xlabel="ranks", xlim=(0.8, 4.2), ylim=(0, None))
    _note(axes, missed)


def against_size(axes: Axes, results: Results, values: Callable[[Case], pd.Series]) -> None:
    """Draw what `values` gives for a case, one line a strategy, against the size of the training set."""
    missed: list[str] = []
    every: set[int] = set()
    for strategy, n in TWO_WORKERS.items():
        case = strong(strategy, n)
        alike = results.runs.query("strategy == @strategy and n_gpus == @n and model == @case.model")
        sizes = alike.groupby("samples")["train_size"].first()
        measured = {size: values(replace(case, train_size=option)) for size, option in sizes.items()}
        missed += _line(axes, strategy, measured, "{}, {:,} samples")
        every |= set(sizes.index)
    axes.set(xscale="log", yscale="log" if len(missed) < len(every) * len(TWO_WORKERS) else "linear")
    axes.set_xticks(sorted(every), [f"{size:,}" for size in sorted(every)])
    axes.xaxis.set_minor_locator(LogLocator(subs=[]))
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(LogLocator(subs=[]))
    axes.set_xlabel("training samples")
    _note(axes, missed)


def _line(axes: Axes, strategy: str, measured: dict[Any, pd.Series], name: str) -> list[str]:
    """Draw a line through the means, with their ranges; return the names of the points that some seed did not reach."""
    reached = {x: values for x, values in measured.items() if len(values) and values.notna().all()}
    style = {"none": ":"}.get(strategy, "--" if strategy.endswith("_builtin") else "-")
    means = pd.Series({x: values.mean() for x, values in reached.items()}, dtype=float)
    below = [means[x] - values.min() for x, values in reached.items()]
    above = [values.max() - means[x] for x, values in reached.items()]
    axes.errorbar(
        means.index, means, [below, above], fmt="o" + style, color=colour_of(strategy), ms=4, capsize=2, lw=1.5,
        label=name_of(strategy),
    )  # fmt: skip
    short = name_of(strategy).split(" (")[0]
    return [name.format(short, x) for x, values in measured.items() if len(values) and x not in reached]


def _note(axes: Axes, missed: Sequence[str]) -> None:
    axes.grid(alpha=0.3)
    if missed:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.15 * (high - low))  # room above the data
        text = "not reached by every seed:\n" + "\n".join(missed)
        axes.text(0.03, 0.97, text, transform=axes.transAxes, va="top", fontsize=8, color="#555555")


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=8.5, **DASHED
    )
