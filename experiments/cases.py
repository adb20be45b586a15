"""What the notebooks and the README show of the results: which cases, as which table, in which figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments import collect, plots
from experiments.collect import Results, pick, ratio_to, spread
from experiments.family_runs import FAMILY
from experiments.runs import (
    FIRST_TRY,
    LINES,
    TIMELINE,
    TIMELINES,
    TWO_WORKERS,
    WEAK_LINES,
    Case,
    strategy_class,
    strong,
    weak,
)
from experiments.store import Store
from records import timeline
from records.errors import UsageError
from records.files import EVENTS_SUFFIX, load_events
from records.tables import applied

SERVER = {model: [Case("param_server", 3, model), Case("param_server_builtin", 2, model)] for model in ("cnn", "mlp")}
SERVERS = [strong("param_server", n) for n in (2, 3, 4)]
_RINGS = ("ring_all_reduce", "ring_all_reduce_builtin")
RING = {
    "cnn": [strong(strategy, n) for n in (2, 4) for strategy in _RINGS],
    "mlp": [Case(strategy, 2, "mlp") for strategy in _RINGS],
}
TRAFFIC = [strong(strategy, 4) for strategy in ("ring_all_reduce", "naive_all_reduce", "param_server")]
STRONG = [strong(strategy, n) for strategy, ranks in LINES.items() for n in ranks]
WEAK = [weak(strategy, n) for strategy, ranks in WEAK_LINES.items() for n in ranks]
STRONG_2 = [strong(*one) for one in TWO_WORKERS.items()]
TABLE = [
    *SERVER["cnn"],
    *RING["cnn"],
    strong("naive_all_reduce", 4),
    strong("none", 2),
    strong("none", 4),
    strong("single", 1),
    *SERVER["mlp"],
    *RING["mlp"],
]
TELLING = [strong("single", 1), *SERVER["cnn"], *RING["cnn"][:2]]  # the README's rows
TARGET, TARGET_OF_SIZES = 0.87, 0.65  # accuracies that the scaling figure times


def first_try(results: Results) -> list[Case]:
    """Return the cases of a first try with 8 ranks, whose training set is smaller in quick results."""
    sizes = results.runs.loc[results.runs["n_gpus"] == FIRST_TRY[0].n_gpus, "train_size"]
    return [replace(case, train_size=int(sizes.iloc[0])) for case in FIRST_TRY]


def param_server(results: Results) -> Figure:
    """Return the summary of the first notebook."""
    return plots.overview(results, SERVER["cnn"], SERVER["mlp"], SERVERS)


def ring_all_reduce(results: Results) -> Figure:
    """Return the summary of the second notebook."""
    return plots.overview(results, RING["cnn"], RING["mlp"], TRAFFIC)


def scaling(results: Results) -> Figure:
    """Return the six panels of the third notebook."""
    return plots.scaling(results, TARGET, TARGET_OF_SIZES)


FIGURES = {"param_server": param_server, "ring_all_reduce": ring_all_reduce, "scaling": plots.scaling_summary}


def timelines(directory: Path) -> Figure:
    """Return two steps of a parameter server beside two of a ring, from the events that were kept. Raises OSError."""
    figure = Figure((9.0, 2.9), layout="constrained")
    drawn, until = set(), 0.0
    grid = figure.subplots(1, 2, sharex=True)
    for axes, strategy in zip(grid, TIMELINES, strict=True):
        events, roles = _events(directory, strategy, strategy)
        drawn |= timeline.draw(axes, events, roles, timeline.middle(events, roles, 2), 2)
        axes.set_title(plots.name_of(strategy), fontsize=10)
        until = max(until, axes.get_xlim()[1])
    grid[0].set_xlim(0, until)  # one scale, so that lengths can be compared
    timeline.legend(figure, drawn)
    return figure


def stale_timeline(directory: Path | None = None) -> Figure:
    """Return some steps of the asynchronous server with a slow worker, from the events that were kept."""
    events, roles = _events(collect.folder(directory), FAMILY, "async_param_server")
    figure = Figure((9.0, 3.8), layout="constrained")
    axes = figure.subplots()
    drawn = timeline.draw(axes, events, roles, _around_the_stalest(events, roles, 2), 2)
    axes.set_title("asynchronous server, worker 3 three times as slow: each gradient's versions", fontsize=10)
    timeline.legend(figure, drawn, versions=True)
    return figure


def _around_the_stalest(events: pd.DataFrame, roles: list[str], n_steps: int) -> int:
    """Return the first of `n_steps` steps in which the stalest gradient of the run is applied."""
    pushes = applied(events)
    at = pushes["t0"][(pushes["version_applied"] - pushes["version_read"]).idxmax()]
    for first in range(1, int(timeline.worker_spans(events, roles)["step"].max()) + 2 - n_steps):
        start, stop = timeline.window(events, roles, first, n_steps)
        if at < start + 0.9 * (stop - start):  # at the edge its label would be cut
            return first
    return timeline.middle(events, roles, n_steps)


def _events(directory: Path, experiment: str, strategy: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the kept events of a short run, and the roles of its ranks."""
    metadata = Store.load(directory, experiment).metadata
    name = next((name for name in metadata if name.startswith(f"{TIMELINE}-{strategy}-")), None)
    if name is None:
        raise UsageError(f"no timeline of {strategy} in {directory}: python experiments/run.py {experiment} makes it")
    return load_events(directory / f"{name}{EVENTS_SUFFIX}"), metadata[name]["roles"]


HEADER = (
    "network",
    "strategy",
    "ranks",
    "test accuracy, %",
    "seconds per epoch",
    "samples/s to built-in",
    "MB per step",
)
BATCHES = {"global_batch_size": "samples a step"}


def table(results: Results, cases: Sequence[Case], more: Mapping[str, str] | None = None) -> list[tuple[str, ...]]:
    """Return the comparison as text, its head first: mean ± standard deviation over the seeds, "-" where there is none.

    Samples/s are divided seed by seed by those of the built-in with as many workers. `more` are columns of the cases to
    be shown beside, with their names.
    """
    more = more or {}
    rows = [(*HEADER[:3], *more.values(), *HEADER[3:])]
    for case in cases:
        if not pick(results.runs, case).empty:
            row = _row(results, case)
            rows.append((*row[:3], *(f"{getattr(case, name):,}" for name in more), *row[3:]))
    return rows


def _row(results: Results, case: Case) -> tuple[str, ...]:
    runs = pick(results.runs, case)
    workers = int(runs["workers"].iloc[0])
    sent = runs["mb_per_step"]
    has_server = "server" in strategy_class(case.strategy)().roles(case.n_gpus)
    server = f" ({workers} worker{'s' * (workers > 1)})" if has_server else ""
    return (
        case.model.upper(),
        plots.name_of(case.strategy),
        plots.ranks(case).removesuffix(" ranks") + server,
        spread(runs["accuracy"], 2, 100),
        spread(runs["epoch_s"], 2),
        _relative(results, case),
        "-" if sent.isna().all() else f"{sent.mean():.2f}" + ("" if runs["counted"].all() else " (formula)"),
    )


def _relative(results: Results, case: Case) -> str:
    if case.strategy == "single" or case.n_gpus == FIRST_TRY[0].n_gpus:
        return "-"
    peer = replace(case, strategy="ring_all_reduce_builtin")
    if case.strategy.startswith("param_server"):
        peer = replace(case, strategy="param_server_builtin", n_gpus=2)
        if case not in (peer, replace(case, strategy="param_server", n_gpus=3)):
            return "-"  # DataParallel was measured with two workers
    return "1" if peer == case else spread(ratio_to(results, case, peer), 2)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table, the first one its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
