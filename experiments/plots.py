"""The figures of the notebooks and the README: lines and bars are means over seeds, bands and whiskers their range."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.collect import Results, pick, seconds_to
from experiments.runs import BATCH
from records.events import PHASES
from records.timeline import COLOURS as PHASE_COLOURS

Case = dict[str, Any]  # what `collect.pick` takes: model, strategy, n_gpus, ...

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
_SERVER, _WORKER = "#c25b4e", "#3b6ea5"
_WIDTH = 9.0  # inches, at 100 dpi the width of a README
MEASURES = {"accuracy": "held-out accuracy, %", "train_loss": "training loss", "test_loss": "held-out loss"}


def case(strategy: str, n_gpus: int, model: str = "cnn", **others: Any) -> Case:
    """Return a case on all training samples, with the global batch that most have."""
    return {
        "strategy": strategy,
        "n_gpus": n_gpus,
        "model": model,
        "global_batch_size": BATCH,
        "train_size": 0,
    } | others


def title(one: Case) -> str:
    """Return how a case is called in a legend."""
    ranks = "" if one["strategy"] == "single" else f", {one['n_gpus']} ranks"
    return NAMES[one["strategy"]] + ranks


def curves(results: Results, cases: Sequence[Case], measures: Sequence[str] = ("accuracy", "train_loss")) -> Figure:
    """Draw each measure against epochs (left) and against seconds (right)."""
    figure = Figure((_WIDTH, 3.1 * len(measures)), layout="constrained")
    grid = figure.subplots(len(measures), 2, squeeze=False)
    for row, measure in zip(grid, measures, strict=True):
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
    for one in cases:
        epochs = pick(results.epochs, **one).groupby("epoch")
        values = epochs[measure].agg(["mean", "min", "max"]) * scale
        across = values.index if x == "epoch" else epochs["seconds"].mean()
        # Two strategies that take the same steps lie on one another: the dashes let both be seen.
        style = "--" if one["strategy"].endswith("_builtin") else "-"
        colour = COLOURS[one["strategy"]]
        marker, alpha = ("s", 0.5) if one["strategy"] in seen else ("o", 1.0)
        seen.add(one["strategy"])
        axes.plot(across, values["mean"], style, color=colour, marker=marker, ms=4, alpha=alpha, label=title(one))
        axes.fill_between(across, values["min"], values["max"], color=colour, alpha=0.15 * alpha, lw=0)
    axes.set(xlabel="epoch" if x == "epoch" else "seconds of training", ylabel=MEASURES[measure])
    axes.grid(alpha=0.3)


def time_by_phase(results: Results, cases: Sequence[Case]) -> Figure:
    """Draw where the seconds of an epoch go, one bar a case and role."""
    figure = Figure((_WIDTH, 1.4 + 0.42 * len(cases)), layout="constrained")
    phases(figure.subplots(), results, cases)
    return figure


def phases(axes: Axes, results: Results, cases: Sequence[Case], legend: bool = True) -> None:
    """Draw one bar a case and role: the mean seconds of an epoch in each phase."""
    labels: list[str] = []
    for one in cases:
        roles = pick(results.phases, **one)
        for role, seconds in roles.groupby("role"):
            labels.append(_two_lines(one) + (f": {role}" if roles["role"].nunique() > 1 else ""))
            left = 0.0
            for phase in PHASES:
                width = float(seconds[f"{phase}_s"].fillna(0).mean())
                axes.barh(len(labels) - 1, width, left=left, color=PHASE_COLOURS[phase], height=0.7)
                left += width
            rest = max(0.0, float(seconds["epoch_s"].mean()) - left)
            axes.barh(len(labels) - 1, rest, left=left, color="white", edgecolor="#bbbbbb", height=0.7, lw=0.6)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds per epoch")
    if legend:  # one is enough where several such axes stand together
        patches = [Patch(color=PHASE_COLOURS[phase], label=phase) for phase in PHASES if phase != "compress"]
        patches.append(Patch(facecolor="white", edgecolor="#bbbbbb", label="outside any phase"))
        axes.legend(
            handles=patches, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False, fontsize=8
        )


def bytes_by_rank(results: Results, cases: Sequence[Case]) -> Figure:
    """Draw the MB that each rank sends in a step."""
    figure = Figure((_WIDTH, 2.8), layout="constrained")
    traffic(figure.subplots(), results, cases)
    return figure


def traffic(axes: Axes, results: Results, cases: Sequence[Case]) -> None:
    """Draw one bar a rank, one group of bars a case: the MB that the rank sends in a step."""
    width, left, middles = 0.8, 0.0, []
    for one in cases:
        ranks = pick(results.traffic, **one).groupby(["rank", "role"], as_index=False)["mb_sent"].mean()
        for role, rows in ranks.groupby("role"):
            colour = _SERVER if role == "server" else _WORKER
            axes.bar(left + rows["rank"], rows["mb_sent"], width, color=colour, label=str(role))
        middles.append(left + (len(ranks) - 1) / 2)
        left += len(ranks) + 1
    axes.set_xticks(middles, [_two_lines(one) for one in cases], fontsize=8)
    axes.set_ylabel("MB sent per step and rank")
    axes.grid(axis="y", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes.legend(named.values(), named.keys(), fontsize=8)


def overview(results: Results, cnn: Sequence[Case], mlp: Sequence[Case], sent: Sequence[Case]) -> Figure:
    """Draw the README's figure: accuracy against seconds, where the time goes, and MB by rank."""
    figure = Figure((_WIDTH, 6.2), layout="constrained")
    top, bottom = figure.subplots(2, 2)
    for axes, cases, name in (
        (top[0], cnn, "CNN, 62 thousand parameters"),
        (top[1], mlp, "MLP, 5.8 million parameters"),
    ):
        against(axes, results, cases, "seconds", "accuracy")
        axes.set_title(name, fontsize=10)
        axes.legend(fontsize=8, loc="lower right")
    phases(bottom[0], results, mlp)
    bottom[0].set_title("where an epoch's time goes (MLP)", fontsize=10)
    traffic(bottom[1], results, sent)
    bottom[1].set_title("traffic (CNN)", fontsize=10)
    return figure


def _two_lines(one: Case) -> str:
    return title(one).replace(" (", "\n(").replace(", ", "\n", 1)


# Scaling

LINES: dict[str, tuple[int, ...]] = {
    "single": (1,),
    "param_server": (2, 3, 4),
    "ring_all_reduce": (2, 4),
    "ring_all_reduce_builtin": (2, 4),
    "none": (2, 4),
}


TWO_WORKERS = tuple((name, 3 if name == "param_server" else ranks[0]) for name, ranks in LINES.items())


def strong(strategy: str, n_gpus: int) -> Case:
    """Return the case of strong scaling: the global batch is the same, whatever the number of workers."""
    return case(strategy, n_gpus)


def weak(strategy: str, n_gpus: int) -> Case:
    """Return the case of weak scaling: each worker has the same batch."""
    workers = n_gpus - 1 if strategy == "param_server" else n_gpus
    return case(strategy, n_gpus, global_batch_size=workers * BATCH // 2)


def scaling(results: Results, target: float, target_of_sizes: float) -> Figure:
    """Draw epoch time and time to an accuracy against ranks (strong, weak) and against the training-set size."""
    figure = Figure((_WIDTH, 5.4), layout="constrained")
    times, reached = figure.subplots(2, 3)
    for axes, to, make, name in (
        (times[0], reached[0], strong, f"strong: {BATCH} samples a step"),
        (times[1], reached[1], weak, f"weak: {BATCH // 2} samples a worker and step"),
    ):
        axes.set_title(name, fontsize=10)
        against_ranks(axes, make, lambda one: pick(results.runs, **one)["epoch_s"])
        axes.set(ylabel="seconds per epoch", ylim=(0, None))
        against_ranks(to, make, lambda one: seconds_to(results, target, **one)["seconds"])
        to.set(ylabel=f"seconds to {100 * target:.0f} % accuracy", ylim=(0, None))
    times[2].set_title("size of the training set", fontsize=10)
    against_size(times[2], results, lambda one: pick(results.runs, **one)["epoch_s"])
    times[2].set_ylabel("seconds per epoch")
    against_size(reached[2], results, lambda one: seconds_to(results, target_of_sizes, **one)["seconds"])
    reached[2].set_ylabel(f"seconds to {100 * target_of_sizes:.0f} % accuracy")
    _legend_below(figure, times[0])
    return figure


def against_ranks(axes: Axes, make: Callable[[str, int], Case], values: Callable[[Case], pd.Series]) -> None:
    """Draw what `values` gives for a case, one line a strategy, against the number of ranks."""
    missing = []
    for strategy, ranks in LINES.items():
        missing += _line(axes, strategy, {n: values(make(strategy, n)) for n in ranks}, "{} with {}")
    axes.set_xticks([1, 2, 3, 4])
    axes.set(xlabel="ranks", xlim=(0.8, 4.2))
    _note(axes, missing)


def against_size(axes: Axes, results: Results, values: Callable[[Case], pd.Series]) -> None:
    """Draw what `values` gives for a case, one line a strategy, against the size of the training set."""
    missing, n_points = [], 0
    for strategy, n in TWO_WORKERS:
        runs = pick(results.runs, strategy=strategy, n_gpus=n, model="cnn", global_batch_size=BATCH)
        sizes = runs.groupby("samples")["train_size"].first()
        measured = {size: values(case(strategy, n, train_size=option)) for size, option in sizes.items()}
        missing += _line(axes, strategy, measured, "{} on {:,}")
        n_points += len(measured)
    axes.set(xscale="log", yscale="log" if len(missing) < n_points else "linear", xlabel="training samples")
    axes.set_xticks(list(sizes.index), [f"{size:,}" for size in sizes.index])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    _note(axes, missing)


def _line(axes: Axes, strategy: str, measured: dict[Any, pd.Series], name: str) -> list[str]:
    """Draw a line through the means, with their ranges; return the names of the points that some seed lacks."""
    whole = {x: values for x, values in measured.items() if len(values) and values.notna().all()}
    style = {"none": ":"}.get(strategy, "--" if strategy.endswith("_builtin") else "-")
    means = pd.Series({x: values.mean() for x, values in whole.items()}, dtype=float)
    below = [means[x] - values.min() for x, values in whole.items()]
    above = [values.max() - means[x] for x, values in whole.items()]
    axes.errorbar(
        means.index, means, [below, above], fmt="o" + style, color=COLOURS[strategy], ms=4, capsize=2, lw=1.5,
        label=NAMES[strategy],
    )  # fmt: skip
    return [name.format(NAMES[strategy].split(" (")[0], x) for x in measured if x not in whole]


def _note(axes: Axes, missing: Sequence[str]) -> None:
    axes.grid(alpha=0.3)
    if missing:
        text = "not reached by every seed:\n" + "\n".join(missing)
        axes.text(0.03, 0.97, text, transform=axes.transAxes, va="top", fontsize=6, color="#555555")


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
