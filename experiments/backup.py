"""What backup workers are for: the time of a step when one worker is slow, with and without one.

    python train.py --strategy param_server --n_gpus 4 --run_name even ...
    python train.py --strategy param_server --n_gpus 4 --run_name waiting --slow 3:5 ...
    python train.py --strategy param_server --n_gpus 4 --run_name backup --slow 3:5 --backup_workers 1 ...

and then `figure({"all alike": [load_events("results/even")], ...})`. Run them in turns, several times: a machine's
speed changes from minute to minute. Where workers share cores, one that sleeps to be slow leaves its core to the
others, and a step with a backup worker can take less time than one of workers all alike. With `--slow 1:4 2:4 3:4`
against `--slow 1:4 2:4 3:20` all sleep for most of the time, as if each had a device of its own.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WITHIN = 1.2  # of the run without a slow worker: how near the backup is to keep the steps
_COLOURS = ("#999999", "#c25b4e", "#3b6ea5", "#5a9e6f", "#d9903d", "#8c6bb1")


def step_seconds(events: pd.DataFrame) -> pd.Series:
    """Return the seconds from each update of the server to the next, without those between two epochs."""
    # A gradient that was applied is on record as an update too, of a version.
    updates = events[(events["phase"] == "update") & (events["version_read"] < 0) & (events["epoch"] > 0)]
    return updates.sort_values("t0").groupby(["rank", "epoch"])["t0"].diff().dropna()


def times(runs: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Return one row a label: median and quartiles of the seconds of a step, over all its runs (events of each).

    ratio, ratio_low, ratio_high: the same, each step over the median of the run of the first label that it was made
    next to: the k-th runs of all labels are one turn. All labels must have as many runs. Raises ValueError.
    """
    if len({len(of_label) for of_label in runs.values()}) != 1:
        raise ValueError("all must have as many runs, made in turns")
    steps = {label: [step_seconds(events) for events in of_label] for label, of_label in runs.items()}
    first = [seconds.median() for seconds in next(iter(steps.values()))]
    rows = {}
    for label, of_label in steps.items():
        seconds = pd.concat(of_label)
        ratios = pd.concat([turn / base for turn, base in zip(of_label, first, strict=True)])
        rows[label] = {
            "steps": len(seconds),
            **dict(zip(("median", "low", "high"), seconds.quantile([0.5, 0.25, 0.75]), strict=True)),
            **dict(zip(("ratio", "ratio_low", "ratio_high"), ratios.quantile([0.5, 0.25, 0.75]), strict=True)),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def draw(axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Draw `times` as bars over the first label's, quartiles as whiskers; return them."""
    table = times(runs)
    places = range(len(table))
    around = [table["ratio"] - table["ratio_low"], table["ratio_high"] - table["ratio"]]
    colours = [_COLOURS[place % len(_COLOURS)] for place in places]
    axes.bar(places, table["ratio"], 0.6, color=colours, yerr=around, error_kw={"lw": 1, "capsize": 4})
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the dotted line
    for place, row in zip(places, table.itertuples(), strict=True):
        text = f"{row.ratio:.2f}\n({1e3 * row.median:.0f} ms)"
        axes.annotate(
            text, (place, row.ratio_high), (0, 4), textcoords="offset points", ha="center", fontsize=8, bbox=box
        )
    axes.axhline(WITHIN, color="black", lw=0.8, ls=":")
    axes.annotate(
        f"{WITHIN:g}", (1, WITHIN), (3, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=8
    )
    axes.set_xticks(list(places), list(table.index), fontsize=9)
    axes.set_ylabel(f"time of a step (“{table.index[0]}” = 1)", fontsize=9)
    axes.set_ylim(0, 1.2 * table["ratio_high"].max())
    axes.spines[["top", "right"]].set_visible(False)
    return table


def figure(runs: Mapping[str, Sequence[pd.DataFrame]], title: str = "") -> Figure:
    """Return `draw` as a figure 900 pixels wide."""
    made = Figure((6, 3.2), dpi=150, layout="constrained")
    draw(made.subplots(), runs)
    if title:
        made.suptitle(title, fontsize=10)
    return made
