"""Show how old the gradients were that a run applied: `python -m gradwire staleness RESULTS_DIR/RUN_NAME`.

The staleness of a gradient is the number of versions between the parameters that it was computed on and those that it
was applied to. Where workers take steps of their own and push what these add up to (downpour, easgd), it is that of a
push: the versions that others have made since the worker's last fetch. The table says which. Prints a table, one row a
worker, and writes the histograms as RUN_NAME.staleness.png.
"""

import math
import textwrap
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradwire.core.records.tables import aligned, applied, dropped, number
from gradwire.pictures.finished import RUN, BadRun, command, load, writing

COLOURS = {"applied": "#0072b2", "dropped": "#d55e00"}
_BARS = 40  # as many as a reader can distinguish in one panel
_COLUMNS = 4
_SHOWN = (  # column of `per_worker`, header, decimals, scale
    ("applied", "{} applied", 0, 1), ("dropped", "dropped", 0, 1), ("staleness_mean", "staleness mean", 2, 1),
    ("staleness_max", "max", 0, 1), ("reads", "reads", 0, 1), ("mixed", "mixed %", 1, 100), ("span", "most", 0, 1),
)  # fmt: skip


def histogram(events: pd.DataFrame, what: str = "applied") -> pd.DataFrame:
    """Return how many gradients of each worker were how stale: columns worker, staleness (versions) and count.

    `what`: "applied", or "dropped", whose staleness is what it would have been.
    """
    gradients = applied(events) if what == "applied" else dropped(events)
    counts = gradients.rename(columns={"peer": "worker"}).groupby(["worker", "staleness"]).size()
    return counts.rename("count").reset_index()


def per_worker(events: pd.DataFrame) -> pd.DataFrame:
    """Return one row a worker that is known to have computed a gradient, by rank.

    applied, dropped: gradients. staleness_mean, staleness_max: of the applied, in versions. reads: of parameters while
    they might change. mixed: the share of these (0 to 1) in which they did. span: the most versions begun in one read.
    """
    used, late, reads = applied(events), dropped(events), events[events["op"] == "read"]
    began = (reads["version_applied"] - reads["version_read"]).groupby(reads["rank"])
    staleness = used.groupby("peer")["staleness"]
    table = pd.DataFrame(
        {
            "applied": staleness.size(),
            "dropped": late.groupby("peer").size(),
            "staleness_mean": staleness.mean(),
            "staleness_max": staleness.max(),
            "reads": began.size(),
            "mixed": began.agg(lambda versions: (versions > 0).mean()),
            "span": began.max(),
        }
    ).rename_axis("worker")
    counts = ["applied", "dropped", "reads"]
    return table.astype(float).fillna(dict.fromkeys(counts, 0)).astype(dict.fromkeys(counts, "int64"))


def picture(events: pd.DataFrame, metadata: Mapping[str, Any]) -> Figure:
    """Return histograms of the shares of gradients, one a worker by rank, 900 pixels wide.

    All have the same bins, of several versions if there are many; a dotted line is the mean of the applied.
    """
    used, late, table = applied(events), dropped(events), per_worker(events)
    top = int(pd.concat([used, late])["staleness"].max())
    width = math.ceil((top + 1) / _BARS)
    bins = np.arange(0, top + 1 + width, width) - 0.5
    columns = min(len(table), _COLUMNS)
    rows = math.ceil(len(table) / columns)
    # Not of pyplot, which would choose a backend for the whole process.
    figure = Figure(figsize=(6, 1.0 + 1.4 * rows), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for i, (panel, (rank, worker)) in enumerate(zip(grid, table.iterrows(), strict=False)):
        both = [gradients.loc[gradients["peer"] == rank, "staleness"] for gradients in (used, late)]
        share = 1 / max(1, sum(map(len, both)))
        panel.hist(
            both, bins, weights=[np.full(len(values), share) for values in both], stacked=True, rwidth=0.9,
            color=list(COLOURS.values()), label=list(COLOURS),
        )  # fmt: skip
        too_late = f", {worker['dropped']:.0f} dropped" if worker["dropped"] else ""
        panel.set_title(f"rank {rank}: {worker['applied']:.0f} applied{too_late}", fontsize=8)
        if worker["applied"]:
            panel.axvline(worker["staleness_mean"], color="#000000", linewidth=1, linestyle=":")
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        panel.set_xlim(-0.6, max(top + 0.6, 3.6))
        if i >= len(table) - columns:  # whatever is the lowest of its column
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("staleness (versions)", fontsize=8)
        if i % columns == 0:
            panel.set_ylabel(f"share of {_plural(metadata)}", fontsize=8)
    for panel in grid[len(table) :]:
        panel.remove()
    options = metadata["options"]
    what = f"{metadata['strategy']}, {len(table)} workers, {options.get('model')} on {options.get('dataset')}"
    figure.suptitle(textwrap.fill(f"{what}; dotted: mean", 90), fontsize=9, parse_math=False)
    if len(late):
        known = grid[0].get_legend_handles_labels()
        figure.legend(*known, loc="outside lower center", ncols=2, frameon=False, fontsize=7.5)
    return figure


def text(events: pd.DataFrame, metadata: Mapping[str, Any]) -> str:
    """Return `per_worker` and all workers together as aligned text."""
    table = per_worker(events)
    # As if all were of one worker, and all read by one.
    every = per_worker(events.assign(peer=-1, rank=-1)).rename({-1: "all"})
    shown = _SHOWN if table["reads"].any() else _SHOWN[:4]
    rows = [["worker", *(header.format(_plural(metadata)) for _, header, *_ in shown)]]
    for name, worker in pd.concat([table, every]).iterrows():
        rows.append([str(name), *(number(worker[column], digits, scale) for column, _, digits, scale in shown)])
    return aligned(rows, left=1)


def _write(given: Namespace) -> str:
    run = load(given.run)
    if applied(run.events).empty and dropped(run.events).empty:
        raise BadRun(f"{run.path}: {run.metadata['strategy']} recorded no versions; a strategy with a server does")
    png = f"{run.path}.staleness.png"
    with writing([png], "copy the run to a writable folder") as (temporary,):
        picture(run.events, run.metadata).savefig(temporary)
    return f"{text(run.events, run.metadata)}\npicture        {png}"


def _plural(metadata: Mapping[str, Any]) -> str:
    return "pushes" if metadata.get("staleness_of") == "push" else "gradients"


main = command("staleness", "Show how old the gradients of a run were.", RUN, _write)
