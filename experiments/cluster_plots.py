"""The pictures and tables of what a cluster would do."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from experiments.cluster import GBIT, SCALED, Cluster
from experiments.collect import spread
from records.legends import DASHED, notes_on_covered

COLOURS = {
    "ring": "#d55e00", "server": "#0072b2", "bound 1": "#009e73", "bound 8": "#cc79a7", "asynchronous": "#e69f00",
    "backup": "#56b4e9",
}  # fmt: skip


def _powers(axes: Axes, which: str) -> None:
    for name in which:
        getattr(axes, f"set_{name}scale")("log", base=2)
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())


def scaling(cluster: Cluster) -> Figure:
    """Speed-up and accuracy against workers, for each bandwidth; means of the seeds, and their range."""
    runs = cluster.of("scaling")
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    grid = figure.subplots(2, len(GBIT), sharex=True, sharey="row")
    for column, gbit in enumerate(GBIT):
        above, below = grid[0, column], grid[1, column]
        limits = [runs["workers"].min(), runs["workers"].max()]
        above.plot(limits, limits, color="0.7", linewidth=1, label="as many times as workers")
        for name in SCALED:
            of_one = runs[(runs["strategy"] == name) & (runs["gbit"] == gbit)].groupby("workers")
            for axes, what, scale in ((above, "speedup", 1), (below, "accuracy", 100)):
                values = of_one[what].agg(["mean", "min", "max"]) * scale
                axes.plot(values.index, values["mean"], color=COLOURS[name], marker="o", markersize=4, label=name)
                axes.fill_between(
                    values.index, values["min"], values["max"], color=COLOURS[name], alpha=0.2, linewidth=0
                )
        above.set_title(f"{gbit} Gbit/s")
        _powers(above, "xy")
        _powers(below, "x")
        below.set_xlabel("workers")
        for axes in (above, below):
            axes.grid(color="0.9")
    grid[0, 0].set_ylabel("times one worker alone")
    grid[1, 0].set_ylabel("held-out accuracy, %")
    facts = cluster.facts
    figure.suptitle(
        f"{facts['model'].upper()} on {facts['train_size']:,} pictures of {facts['dataset'].replace('_', '-')}, "
        f"{facts['epochs']} epochs, {facts['batch_size']} samples a worker, {facts['compute']} a step of one worker, "
        f"latency {facts['latency']}", fontsize=9,
    )  # fmt: skip
    figure.draw_without_rendering()
    notes = notes_on_covered(grid.flat)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    names = [f"{label} ({notes[label]})" if label in notes else label for label in labels]
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, **DASHED)
    return figure


def scaling_table(cluster: Cluster, gbit: int) -> list[tuple[str, ...]]:
    """Return speed-up, accuracy and busiest card as text, its head first: mean ± standard deviation of the seeds."""
    rows: list[tuple[str, ...]] = [
        ("strategy", "workers", "rate", "speed-up", "accuracy, %", "busiest card, % of the time")
    ]
    runs = cluster.of("scaling")
    for (name, workers), one in runs[runs["gbit"] == gbit].groupby(["strategy", "workers"], sort=False):
        card = f"{one['busiest_card'].iloc[0]}, {one['busy_percent'].mean():.0f}"
        rate = f"{one['lr'].iloc[0]:g}"
        rows.append((str(name), str(workers), rate, spread(one["speedup"], 2), spread(one["accuracy"], 2, 100), card))
    return rows


def slow(cluster: Cluster) -> Figure:
    """Seconds with equal workers and with one slow one; means of the seeds, and their range."""
    runs = cluster.of("slow")
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    names = list(runs["strategy"].unique())
    for i, name in enumerate(names):
        for j, is_slow in enumerate((False, True)):
            seconds = runs[(runs["strategy"] == name) & (runs["slow"] == is_slow)]["seconds"]
            middle = seconds.mean()
            error = [[max(0.0, middle - seconds.min())], [max(0.0, seconds.max() - middle)]]  # equal ones round
            axes.bar(i + 0.38 * (j - 0.5), middle, 0.36, color=COLOURS[name], alpha=1 if is_slow else 0.4, yerr=error)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("virtual seconds")
    axes.set_title("pale: equal workers; full: the last worker 5 times as slow")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    return figure


def racks_table(cluster: Cluster) -> list[tuple[str, ...]]:
    """Return what four racks change, as text, its head first."""
    rows: list[tuple[str, ...]] = [("strategy", "racks", "uplink", "virtual seconds", "busiest card, % of the time")]
    for _, one in cluster.of("racks").iterrows():
        card = f"{one['busiest_card']}, {one['busy_percent']:.0f}"
        uplink = "-" if pd.isna(one["uplink"]) else f"{one['uplink']:g} Gbit/s"
        rows.append((one["strategy"], str(one["racks"]), uplink, f"{one['seconds']:.2f}", card))
    return rows


def prediction(cluster: Cluster) -> Figure:
    """Predicted, simulated and measured seconds of a step, and how far they are apart."""
    rows = cluster.predictions
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    wall = rows["wall"] == "yes"
    limits = [rows["measured_ms"].min() * 0.9, rows["measured_ms"].max() * 1.1]
    left.plot(limits, limits, color="0.7", linewidth=1)
    left.plot(
        rows["measured_ms"],
        rows["predicted_ms"],
        "o",
        color="#d55e00",
        markersize=6,
        fillstyle="none",
        label="predicted",
    )
    left.plot(rows["measured_ms"], rows["simulated_ms"], ".", color="#0072b2", markersize=5, label="simulated")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("measured, ms a step")
    left.set_ylabel("ms a step")
    left.legend(frameon=False)
    error = 100 * (rows["simulated_ms"] / rows["measured_ms"] - 1)
    share = (rows["predicted_ms"] - rows["machine_ms"]).clip(lower=1e-3) / rows["machine_ms"]
    for here, colour, label in ((wall, "#0072b2", "the link is the wall"), (~wall, "0.6", "so are the two cores")):
        linked = here & (rows["strategy"] != "none")
        right.plot(share[linked], error[linked], "o", color=colour, markersize=4, label=label)
    right.axhspan(-10, 10, color="0.93", zorder=0)
    right.set_xscale("log")
    right.set_xlabel("time of the link / time of a step without a link")
    right.set_ylabel("simulated against measured, %")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(color="0.9")
    return figure


def findings(cluster: Cluster) -> str:
    """Return what the scaling shows, as sentences with their numbers."""
    runs = cluster.of("scaling")
    most = runs["workers"].max()

    def says(name: str, gbit: int, workers: int, column: str, digits: int, scale: float = 1) -> str:
        one = runs[(runs["strategy"] == name) & (runs["gbit"] == gbit) & (runs["workers"] == workers)]
        return spread(one[column], digits, scale)

    lines = []
    for gbit in GBIT:
        speeds = ", ".join(f"{name} {says(name, gbit, most, 'speedup', 1)}" for name in SCALED)
        lines.append(f"- **{gbit} Gbit/s, {most} workers**, times the samples/s of one: {speeds}.")
    losses = ", ".join(
        f"{name} {says(name, GBIT[-1], 1, 'accuracy', 1, 100)} and {says(name, GBIT[-1], most, 'accuracy', 1, 100)}"
        for name in SCALED
    )
    lines.append(f"- **Accuracy** in %, with 1 and with {most} workers, at {GBIT[-1]} Gbit/s: {losses}.")
    return "\n".join(lines)


def accuracy_of_predictions(cluster: Cluster) -> str:
    """Return how far predictions are from what was measured, as a sentence with its numbers."""
    rows = cluster.predictions
    wall = rows[rows["wall"] == "yes"]
    parts = []
    for side in ("predicted", "simulated"):
        errors = 100 * (wall[f"{side}_ms"] / wall["measured_ms"] - 1)
        parts.append(f"{side} {errors.min():+.1f} to {errors.max():+.1f} %")
    return (
        f"Where the link is the wall ({len(wall)} of {len(rows)} cases: it takes at least four times what a step takes "
        f"without it), against measured: {', '.join(parts)}."
    )
