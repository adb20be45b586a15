"""Draw how finished runs learned: `python -m gradwire plot RESULTS_DIR/*.json [--out FILE.png]`.

Writes one picture of small panels: held-out scores and training loss, each against epochs, seconds and bytes, one
line a run; runs of several seeds are one line, their mean, in the shade of their range. Without --out it is
RUN.curves.png for one run, and curves.png beside the first for several.
`draw_sweep` draws what `simulate.py --sweep` has run.
"""

import math
import re
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, MaxNLocator, NullFormatter

from gradwire.core.records.atomic import write_atomically
from gradwire.core.records.tables import scores, workers
from gradwire.pictures.finished import RUNS, BadRun, Run, command, find_runs, shortened, writing
from gradwire.pictures.seeds import groups, name_of

# The colours of Okabe and Ito, which the colour-blind can distinguish; then again with other dashes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", "--", ":", "-.")
MOST = len(COLOURS) * len(DASHES)
DASHED = {"handlelength": 3.6}
"""Options of a legend in which dashes are seen as dashes."""
_NEAR = 2.0  # points between lines that cover each other
_LABELS = {"accuracy": "held-out accuracy (%)", "loss": "training loss"}
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
_NAME_WIDTH, _NAME_LINES = 30, 4  # characters of a run's name in one line, and lines
_LOG_FROM = 100.0  # with a larger ratio of the greatest to the smallest loss, its axis is logarithmic


def curve(run: Run) -> pd.DataFrame:
    """Return one row per finished epoch: epoch, seconds and bytes since the start, accuracy (%), other scores, loss.

    seconds: of the slowest rank, without evaluation; bytes: sent by all ranks; loss: the mean over the samples that
    the workers trained in the epoch. NaN where a thing was not measured, or was not a finite number.
    """
    epochs = run.table.groupby("epoch")
    trained = workers(run.table).assign(weight=lambda rows: rows["samples"].astype("float64"))
    trained = trained.assign(weighted=trained["train_loss"] * trained["weight"]).groupby("epoch")
    others = {name: re.sub("^test_(?!loss$)", "", name).replace("_", " ") for name in scores(run.table)}
    others.pop("test_accuracy", None)
    rows = pd.DataFrame(
        {
            "seconds": epochs["epoch_s"].max(),
            "bytes": epochs["bytes_sent"].sum(min_count=1).astype("float64"),
            "accuracy": 100 * epochs["test_accuracy"].first(),
            **{measure: epochs[name].first() for name, measure in others.items()},
            "loss": trained["weighted"].sum(min_count=1) / trained["weight"].sum(min_count=1),
        }
    )
    rows = rows[rows["seconds"].notna()]
    rows = rows.assign(seconds=rows["seconds"].cumsum(), bytes=rows["bytes"].cumsum())
    return rows.replace([np.inf, -np.inf], np.nan).reset_index()


def picture(runs: Sequence[Run]) -> Figure:
    """Return the panels of `curve` of each run, 900 pixels wide. Rows and columns that nothing measured are left out.

    A loss that stopped being a number ends in a cross, and the legend says so.
    """
    alike = groups(runs)
    spreads = [pd.concat([curve(run) for run in group]).groupby("epoch") for group in alike]
    sizes = map(len, alike)
    curves = [(rows.sum(min_count=n) / n).reset_index() for rows, n in zip(spreads, sizes, strict=True)]
    every = pd.concat(curves)
    most = every["bytes"].max()
    scale, unit = next((size, name) for size, name in _UNITS if most >= 2 * size or size == 1)
    for rows in curves:
        rows["bytes"] /= scale
    across = {"epoch": ("epochs", "epochs"), "seconds": ("seconds", "training time (s)")}
    across |= {"bytes": ("bytes sent", f"sent by all ranks ({unit})")} if (every["bytes"] > 0).any() else {}
    others = [name for name in every if name not in ("epoch", "seconds", "bytes", *_LABELS)]
    measures = [name for name in ("accuracy", *others, "loss") if every[name].notna().any()] or ["loss"]
    diverged = [bool(rows["loss"].notna().any() and math.isnan(rows["loss"].iloc[-1])) for rows in curves]
    names = [_name(name_of(of)) + ("\n(diverged)" if lost else "") for of, lost in zip(alike, diverged, strict=True)]
    lines = 1 + sum(name.count("\n") + 1.4 for name in names)
    figure = Figure((9.0, max(2.4 * len(measures) + 0.4, 0.17 * lines)), dpi=100, layout="constrained")
    grid = figure.subplots(len(measures), len(across), sharex="col", sharey="row", squeeze=False)
    for i, measure in enumerate(measures):
        for j, (x, (against, label)) in enumerate(across.items()):
            axes = grid[i, j]
            for number, rows in enumerate(curves):
                known, style = rows.reindex(columns=[x, measure]).dropna(), _style(number)
                axes.plot(known[x], known[measure], label=str(number), **style)
                least, greatest = (
                    found[measure].reindex(rows["epoch"]) for found in (spreads[number].min(), spreads[number].max())
                )
                _shade(axes, rows[x], least, greatest, style["color"])
                if diverged[number] and measure == "loss":
                    axes.plot(known[x].iloc[-1:], known[measure].iloc[-1:], "x", color=style["color"], markersize=8)
            title = f"{measure} against {against}"
            axes.set_title(title, fontsize=9 if len(title) < 30 else 7.5)
            axes.grid(color="#e6e6e6", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8, labelbottom=True)
            axes.set_xlabel(label, fontsize=8)
        grid[i, 0].set_ylabel(_LABELS.get(measure, f"held-out {measure.removeprefix('test ')}"), fontsize=8)
    for axes in grid[:, 0]:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for axes in grid[0, 1:]:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    losses = every["loss"][every["loss"] > 0]
    if "loss" in measures and len(losses) and losses.max() > _LOG_FROM * losses.min():
        grid[-1, 0].set_yscale("log")
        grid[-1, 0].yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
    if len(alike) > 1:
        figure.draw_without_rendering()
        notes = notes_on_covered(
            grid.flat, {str(number): shortened(name_of(of), 16) for number, of in enumerate(alike)}
        )
        handles = []
        for number, name in enumerate(names):
            note = notes.get(str(number), "").replace("$", r"\$")
            handles.append(Line2D([], [], label=f"{name}\n({note})" if note else name, **_style(number)))
        figure.set_figheight(max(figure.get_figheight(), 0.17 * (lines + len(notes))))
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=7.5, **DASHED)
    figure.suptitle(_title(runs, names), fontsize=9)
    return figure


def notes_on_covered(panels: Iterable[Axes], names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return, by the label of each line on which another lies that was drawn later: "under b", b being that one.

    "partly under b" where it does so in some of the `panels` alone. `names`: what labels stand for, if not for
    themselves. The axes have their final limits, as after `Figure.draw_without_rendering`.
    """
    panels_of: Counter[str] = Counter()
    covers: Counter[tuple[str, str]] = Counter()
    for axes in panels:
        lines = {str(line.get_label()): points for line in axes.get_lines() if len(points := _points(line))}
        shown = {label: points for label, points in lines.items() if not label.startswith("_")}
        panels_of.update(list(shown))
        covers.update((a, b) for a, b in combinations(shown, 2) if _are_near(shown[a], shown[b]))
    notes: dict[str, str] = {}
    for (label, by), times in covers.most_common():
        partly = "partly " if times < panels_of[label] else ""
        notes.setdefault(label, f"{partly}under {names[by] if names else by}")
    return notes


def _points(line: Line2D) -> np.ndarray:
    data = np.asarray(line.get_xydata(), dtype=float)
    return np.asarray(line.get_transform().transform(data[np.isfinite(data).all(1)]))


def _are_near(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() <= _NEAR)


def _style(number: int) -> dict[str, Any]:
    dashes = DASHES[number // len(COLOURS)]
    colour = COLOURS[number % len(COLOURS)]
    return {"color": colour, "linestyle": dashes, "marker": "o", "markersize": 2.5, "linewidth": 1.3}


def _name(name: str) -> str:
    """Return the name of a run in short lines, for a narrow legend: each ends in a dash or an underscore, if it can."""
    short = shortened(name, _NAME_LINES * _NAME_WIDTH)
    lines = re.findall(rf".{{1,{_NAME_WIDTH}}}(?:(?<=[-_ ])|$)|.{{1,{_NAME_WIDTH}}}", short)
    return "\n".join(lines).replace("$", r"\$")


def _title(runs: Sequence[Run], names: Sequence[str]) -> str:
    trained = {f"{run.options.get('model')} on {run.options.get('dataset')}" for run in runs if run.options}
    ranks = {f"{run.table['strategy'].iloc[0]}, n_gpus {run.table['n_gpus'].iloc[0]}" for run in runs}
    what = [*(ranks if len(ranks) == 1 else [f"{len(runs)} runs"]), *(trained if len(trained) == 1 else [])]
    return textwrap.fill(", ".join(what), 110) + (f"\n{names[0]}" if len(names) == 1 else "")


def draw_sweep(frame: pd.DataFrame, others: Sequence[str], path: Path, given: str = "") -> None:
    """Draw `speedup` against `workers`, or `seconds_a_step` if there is one, a line for each combination of `others`.

    Hollow where less than half of a step is `compute_s`. `others`: columns. `given`: what all runs have alike, for the
    title. Raises OSError.
    """
    figure = Figure(figsize=(7, 5.4), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_xlabel("workers")
    axes.grid(color="0.9")
    if "seconds_a_step" in frame:
        what, label = "A step", "seconds a step"
        _draw_lines(axes, frame, others, "seconds_a_step")
        waits = frame[frame["seconds_a_step"] > 2 * frame["compute_s"]]
        axes.plot(
            waits["workers"], waits["seconds_a_step"], "o", color="white", markeredgecolor="0.3", markersize=4,
            label="mostly waiting", zorder=4,
        )  # fmt: skip
        axes.set_yscale("log")
    else:
        what, label = "Speed-up", "times the samples/s of one worker alone"
        limits = [frame["workers"].min(), frame["workers"].max()]
        axes.plot(limits, limits, color="0.6", linewidth=1, label="as many times as workers")
        _draw_lines(axes, frame, others, "speedup")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.set_title("\n".join([f"{what} in virtual time", *textwrap.wrap(given, 80)]), fontsize=9)
    title = ", ".join(others or ["strategy"])
    figure.legend(loc="outside lower center", title=title, frameon=False, fontsize="small", ncols=2, **DASHED)
    with write_atomically(path) as unfinished:
        figure.savefig(unfinished, format="png")


def _draw_lines(axes: Axes, frame: pd.DataFrame, others: Sequence[str], what: str) -> None:
    """Draw a line for each combination of the columns `others`: the first sets the colour, the rest the dashes.

    Lines that are the same within 1 % are one, with both names.
    """
    names = list(others) or ["strategy"]
    firsts, rests = list(frame[names[0]].unique()), list(frame[names[1:]].drop_duplicates().itertuples(index=False))
    drawn: list[tuple[tuple[str, ...], pd.Series, Line2D]] = []
    for values, line in frame.groupby(names, sort=False):
        of_seeds = line.groupby("workers")[what]
        rest, curve = tuple(values[1:]), of_seeds.mean()
        for other, like, same in drawn:
            if other == rest and like.index.equals(curve.index) and np.allclose(like, curve, rtol=0.01):
                first, comma, more = str(same.get_label()).partition(", ")
                same.set_label(f"{first} and {values[0]}{comma}{more}")
                break
        else:
            colour = COLOURS[firsts.index(values[0]) % len(COLOURS)]
            dashes = DASHES[rests.index(rest) % len(DASHES)] if rests else DASHES[0]
            label = ", ".join(str(value) for value in values)
            style: dict[str, Any] = {"color": colour, "linewidth": 1.5, "marker": "o", "markersize": 4}
            drawn += [(rest, curve, line) for line in axes.plot(curve.index, curve, dashes, label=label, **style)]
            _shade(axes, curve.index, of_seeds.min(), of_seeds.max(), colour)


def _shade(axes: Axes, x: Any, least: Any, greatest: Any, colour: str) -> None:
    """Shade the range of several seeds, if there are several."""
    if not np.array_equal(least, greatest, equal_nan=True):
        axes.fill_between(x, least, greatest, color=colour, alpha=0.2, linewidth=0)


def _write(given: Namespace) -> str:
    runs = find_runs(given.paths, given.last)
    if len(groups(runs)) > MOST:
        raise BadRun(f"{len(runs)} runs are too many to tell apart; give {MOST} or fewer, or --last {MOST}")
    beside = f"{runs[0].path}.curves.png" if len(runs) == 1 else runs[0].path.with_name("curves.png")
    png = Path(given.out or beside)
    if png.suffix != ".png":
        raise BadRun(f"--out {png}: must end in .png")
    with writing([png], "give another --out") as (temporary,):
        picture(runs).savefig(temporary)
    return f"picture        {png}"


_OUT = {"metavar": "FILE.png", "help": "where the picture goes (default: beside the first run)"}
main = command("plot", "Draw accuracy and loss of finished runs.", RUNS | {"--out": _OUT}, _write)
