"""What the notebooks and the README show of the results: which cases, as which table, in which three figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments import plots
from experiments.collect import Results, pick, ratio_to, spread
from experiments.plots import Case, case
from experiments.runs import TIMELINE
from records import timeline
from records.files import EVENTS_SUFFIX, load_events, load_metadata

SERVER = {model: [case("param_server", 3, model), case("param_server_builtin", 2, model)] for model in ("cnn", "mlp")}
SERVERS = [case("param_server", n) for n in (2, 3, 4)]
RING = {
    "cnn": [case(strategy, n) for n in (2, 4) for strategy in ("ring_all_reduce", "ring_all_reduce_builtin")],
    "mlp": [case(strategy, 2, "mlp") for strategy in ("ring_all_reduce", "ring_all_reduce_builtin")],
}
TRAFFIC = [case(strategy, 4) for strategy in ("ring_all_reduce", "naive_all_reduce", "param_server")]
TABLE = [
    *SERVER["cnn"],
    *RING["cnn"],
    case("naive_all_reduce", 4),
    case("none", 2),
    case("none", 4),
    case("single", 1),
    *SERVER["mlp"],
    *RING["mlp"],
]
HEADER = (
    "network",
    "strategy",
    "ranks",
    "test accuracy, %",
    "seconds per epoch",
    "samples/s to built-in",
    "MB per step",
)
TARGET, TARGET_OF_SIZES = 0.88, 0.75  # accuracies that the scaling figure times


def param_server(results: Results) -> Figure:
    """Return the summary of the first notebook."""
    return plots.overview(results, SERVER["cnn"], SERVER["mlp"], SERVERS)


def ring_all_reduce(results: Results) -> Figure:
    """Return the summary of the second notebook."""
    return plots.overview(results, RING["cnn"], RING["mlp"], TRAFFIC)


def scaling(results: Results) -> Figure:
    """Return the summary of the third notebook."""
    return plots.scaling(results, TARGET, TARGET_OF_SIZES)


def timelines(directory: Path) -> Figure:
    """Return two steps of a parameter server beside two of a ring, from the events that were kept. Raises OSError."""
    figure = Figure((9.0, 3.0), layout="constrained")
    drawn = set()
    for axes, strategy in zip(figure.subplots(1, 2), ("param_server", "ring_all_reduce"), strict=True):
        (run,) = directory.glob(f"{TIMELINE}-{strategy}-*{EVENTS_SUFFIX}")
        events = load_events(run)
        roles = load_metadata(str(run).removesuffix(EVENTS_SUFFIX) + ".json")["roles"]
        drawn |= timeline.draw(axes, events, roles, timeline.middle(events, roles, 2), 2)
        axes.set_title(plots.NAMES[strategy], fontsize=10)
    timeline.legend(figure, drawn)
    return figure


FIGURES = {"param_server": param_server, "ring_all_reduce": ring_all_reduce, "scaling": scaling}


def table(results: Results, cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """Return the comparison as text, HEADER first: mean ± half the range over the seeds, "-" where nothing is counted.

    Samples/s are divided seed by seed by those of the built-in with as many workers.
    """
    return [HEADER, *(_row(results, one) for one in cases if not pick(results.runs, **one).empty)]


def _row(results: Results, one: Case) -> tuple[str, ...]:
    runs = pick(results.runs, **one)
    workers = int(runs["workers"].iloc[0])
    sent = runs["mb_per_step"]
    counted = "" if results.metadata[runs["run"].iloc[0]]["bytes"] == "counted" else " (formula)"
    ranks = f"{one['n_gpus']}"
    if one["strategy"] == "param_server":
        ranks += f" ({workers} worker{'s' * (workers > 1)})"
    return (
        str(one["model"]).upper(),
        plots.NAMES[one["strategy"]],
        ranks,
        spread(runs["accuracy"], 2, 100),
        spread(runs["epoch_s"], 2),
        _relative(results, one),
        "-" if sent.isna().all() else f"{sent.mean():.2f}{counted}",
    )


def _relative(results: Results, one: Case) -> str:
    peer = _built_in(one)
    if peer is None:
        return "-"
    return "1" if peer == one else spread(ratio_to(results, one, peer), 2)


def _built_in(one: Case) -> dict[str, Any] | None:
    strategy, n = one["strategy"], one["n_gpus"]
    if strategy == "single":
        return None
    if strategy == "param_server":
        return one | {"strategy": "param_server_builtin", "n_gpus": n - 1}
    return one if strategy.endswith("_builtin") else one | {"strategy": "ring_all_reduce_builtin"}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table, the first one its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
