"""The experiments: fair as declared; what is shown of the results, and how it is computed from them."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks import networks
from experiments import (
    cases,
    cluster,
    collect,
    compression,
    family,
    family_plots,
    plots,
    report,
    runs,
    sentences,
    whole_family,
)
from experiments.family_runs import FAMILY
from experiments.run import CLUSTER_EXPERIMENT, CODED_EXPERIMENT, WHOLE_EXPERIMENT
from experiments.runs import EXPERIMENTS, Case
from experiments.store import Store
from records.errors import UsageError
from strategies import STRATEGIES
from tests.experiments import samples
from training import Options
from training.checks import resolve
from workloads import models

ROOT = Path(__file__).parent.parent.parent
KEPT = collect.KEPT
SHOWN = [
    *cases.TABLE, *cases.STRONG, *cases.WEAK, *cases.STRONG_2, *cases.SERVERS, *cases.TRAFFIC, *runs.FIRST_TRY,
    *(case for pair in (*cases.SERVER.values(), *cases.RING.values()) for case in pair),
]  # fmt: skip


def declared(quick: bool = False) -> dict[str, Options]:
    return {str(one.run_name): one for experiment in EXPERIMENTS for one in runs.declared(experiment, quick)}


# What is declared


def test_every_case_has_every_seed_and_all_else_alike() -> None:
    seeds: dict[str, list[int]] = {}
    for name, one in declared().items():
        assert (one.lr, one.momentum, one.optimizer, one.dataset) == (0.02, 0.9, "sgd", "fashion_mnist")
        assert one.strategy.name in (*runs.BUILTIN, *STRATEGIES)
        if not name.startswith(runs.TIMELINE):
            seeds.setdefault(name.rpartition("-s")[0], []).append(one.seed)
    assert all(found == list(runs.SEEDS) for found in seeds.values())
    assert not set(declared()) & set(declared(quick=True)), "a quick run is never taken for a long one"


def options_of(case: Case) -> Options:
    wanted = asdict(case) | {"model": runs.MODELS[case.model], "seed": 0}
    names = [name for name, one in declared().items() if wanted.items() <= one.recorded().items()]
    (name,) = (name for name in names if not name.startswith(runs.TIMELINE))
    return declared()[name]


def test_whatever_is_shown_is_declared() -> None:
    for case in SHOWN:
        options_of(case)


def test_both_sides_of_a_comparison_have_the_same_workers_and_batches() -> None:
    pairs = [pair for shown in (cases.SERVER, cases.RING) for pair in shown.values()]
    for ours, built_in in [(pair[i], pair[i + 1]) for pair in pairs for i in range(0, len(pair), 2)]:
        assert built_in.strategy == f"{ours.strategy}_builtin"
        one, other = options_of(ours), options_of(built_in)
        assert resolve(one).plan(60_000) == resolve(other).plan(60_000)
        assert one.epochs == other.epochs
    for case in cases.STRONG:
        assert resolve(options_of(case)).plan(60_000).global_batch_size == runs.BATCH
    for case in cases.WEAK:
        plan = resolve(options_of(case)).plan(60_000)
        assert plan.global_batch_size == plan.workers * runs.BATCH // 2
    assert {resolve(options_of(case)).plan(60_000).workers for case in cases.STRONG_2[1:]} == {2}


def test_the_sizes_of_the_networks_are_those_that_the_figures_name() -> None:
    for label, name, build in (
        ("CNN, 108 thousand parameters", "cnn", lambda: models.build("lenet", (1, 28, 28), 10)),
        ("MLP, 5.8 million parameters", "mlp", lambda: networks.mlp((1, 28, 28), 10)),
    ):
        size = sum(p.numel() for p in build().parameters())
        assert plots.SIZES[name] == label
        assert label.split()[1] == (f"{size / 1e6:.1f}" if "million" in label else f"{size / 1e3:.0f}")


def test_a_strategy_that_is_new_has_a_name_and_a_colour() -> None:
    assert plots.name_of("ring_all_reduce") == "ring all-reduce"
    assert plots.name_of("some_new_server") == "some new server"
    assert plots.name_of("mine.servers:My_Server") == "My Server"
    assert plots.colour_of("some_new_server") not in plots.COLOURS.values()
    assert plots.colour_of("mine.servers:My_Server") == plots.colour_of("mine.servers:My_Server")
    assert plots.title(Case("inconsistent_reads", 4)) == "inconsistent reads, 4 ranks"


# What is shown


@pytest.mark.parametrize("name", ["param_server", "ring_all_reduce", "scaling", "server_family", "cluster",
                                  "compression", "whole_family"])  # fmt: skip
def test_bars_begin_at_0_and_dashes_are_seen(name: str) -> None:
    figure = report.figure(name, collect.KEPT)
    figure.draw_without_rendering()
    for axes in figure.axes:
        bars = [one for one in axes.patches if isinstance(one, Rectangle) and one.get_width() and one.get_height()]
        lengths = {"x" if isinstance(container, BarContainer) and container.orientation == "horizontal" else "y"
                   for container in axes.containers}  # fmt: skip
        if bars and "x" in lengths:
            assert axes.get_xlim()[0] <= 0
        elif bars:
            assert axes.get_ylim()[0] <= 0
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        for line in legend.get_lines():
            if line.get_linestyle() in ("--", ":", "-."):
                assert legend.handlelength >= 3


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of all experiments, of which every number is made up."""
    return samples.everything(tmp_path_factory.mktemp("results"))


def measured(experiment: str) -> None:
    """Skip a test of committed results that were not measured yet; results that are there must be complete."""
    if experiment == CLUSTER_EXPERIMENT:
        assert cluster.is_measured(KEPT)
        return
    if experiment == CODED_EXPERIMENT:
        assert compression.missing(KEPT) == []
        return
    if experiment == WHOLE_EXPERIMENT:
        assert whole_family.is_measured(KEPT)
        return
    if not Store.load(KEPT, experiment).metadata:
        pytest.skip(f"python experiments/run.py {experiment} has not been run yet")
    assert report.missing(KEPT, experiment) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_committed_results_are_those_of_the_declared_runs(experiment: str) -> None:
    measured(experiment)
    store = Store.load(KEPT, experiment)
    assert set(store.metadata) == {str(one.run_name) for one in runs.declared(experiment)}
    assert not any(str(entry["git_commit"]).endswith("-dirty") for entry in store.metadata.values())
    assert len({str(entry["machine"]) for entry in store.metadata.values()}) == 1


@pytest.mark.slow
def test_the_cnn_passes_88_percent_with_every_strategy_that_communicates() -> None:
    measured("scaling")
    table = collect.load(directory=KEPT).runs.query(
        "model == 'cnn' and train_size == 0 and global_batch_size == @runs.BATCH"
    )
    communicating = table[table["strategy"] != "none"]
    assert set(communicating["strategy"]) == {one.strategy.name for one in declared().values()} - {"none"}
    assert (communicating["accuracy"] > 0.88).all()


@pytest.mark.slow
@pytest.mark.parametrize("notebook", report.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_the_committed_results(notebook: Path) -> None:
    measured(report.experiment_of(notebook))

    def outputs(node: nbformat.NotebookNode) -> list[Any]:
        return [output for cell in node.cells if cell.cell_type == "code" for output in cell.outputs]

    def said(node: nbformat.NotebookNode) -> list[str]:
        return [
            "".join(output.get("text", output.get("data", {}).get("text/markdown", ""))) for output in outputs(node)
        ]

    def pictures(node: nbformat.NotebookNode) -> int:
        return sum("image/png" in output.get("data", {}) for output in outputs(node))

    saved, executed = nbformat.read(notebook, as_version=4), report.execute(notebook, KEPT)
    assert said(executed) == said(saved), "python experiments/report.py brings the notebooks up to date"
    assert pictures(executed) == pictures(saved) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("path", report.TABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_of_the_readmes_shows_the_committed_results(path: Path) -> None:
    for experiment in EXPERIMENTS:
        measured(experiment)
    text, results = path.read_text(encoding="utf-8"), collect.load(directory=KEPT)
    assert report.with_table(text, results, report.TABLES[path]) == text, "python experiments/report.py does so"


@pytest.mark.slow
def test_a_number_that_is_edited_by_hand_is_not_what_the_generator_makes(made_up: Path) -> None:
    results = collect.load(directory=made_up)
    text = "before\n<!-- results: made by x -->\n<!-- end of results -->\nafter\n"
    table = report.with_table(text, results, cases.TELLING)
    assert table.count("\n| CNN") == len(cases.TELLING) == 5
    assert report.with_table(table, results, cases.TELLING) == table
    digit = re.search(r"\| (\d)\d\.\d\d ±", table)
    assert digit
    edited = table[: digit.start(1)] + str((int(digit[1]) + 1) % 10) + table[digit.end(1) :]
    assert report.with_table(edited, results, cases.TELLING) == table != edited


def test_no_number_that_was_measured_stands_in_the_text_of_a_notebook() -> None:
    """They stand in outputs, which are of the same results as the figures beside them."""
    assert {path.stem[0] for path in report.NOTEBOOKS} == set("123456789")
    for path in report.NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        assert not re.findall(r"\d+\.\d+ (?:s|%|ms)\b|\d+ %", text), path.name
        assert re.search("What (this machine|a simulation) cannot show", text)
        assert 100 < len(text.split()) < 1300, "short enough for a lecture"


def figures(folder: Path) -> dict[str, Figure]:
    results, of_family = collect.load(directory=folder), family.load(folder)
    drawn = {name: draw(results) for name, draw in cases.FIGURES.items()}
    for draw in (plots.curves, plots.time_by_phase, plots.bytes_by_rank):
        drawn[draw.__name__] = draw(results, cases.RING["cnn"])
    for name in ("summary", "accuracy", "grid", "staleness", "straggler", "backup", "lost"):
        drawn[name] = getattr(family_plots, name)(of_family)
    return drawn


@pytest.mark.slow
def test_every_panel_of_every_figure_has_a_title_and_is_drawn(made_up: Path, tmp_path: Path) -> None:
    for name, figure in figures(made_up).items():
        assert all(axes.get_title() for axes in figure.axes), name
        figure.savefig(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_sentences_are_about_the_results(made_up: Path) -> None:
    results, of_family = collect.load(directory=made_up), family.load(made_up)
    for say in (sentences.param_server, sentences.first_try, sentences.ring_all_reduce, sentences.scaling):
        assert "nan" not in say(results)
    for tell in (sentences.comparison, sentences.straggler, sentences.backup, sentences.lost_updates):
        assert "nan" not in tell(of_family)
    accuracy = collect.pick(results.runs, cases.SERVER["cnn"][0])["accuracy"]
    assert f"parameter server, 3 ranks {collect.spread(accuracy, 2, 100)} %" in sentences.param_server(results)


def test_a_run_that_diverged_is_called_so(made_up: Path) -> None:
    of_family = family.load(made_up)
    table = family.grid_table(of_family)
    assert table[0][-1] == "0.4"
    assert {row[0]: row[-1].strip() for row in table[1:]}["asynchronous"] == "diverged"
    assert "**Diverged** with 0.4: staleness bound 2, asynchronous, Downpour, every 4 (" in sentences.grid(of_family)
    assert not any("0.00" in cell or cell.strip() == "5.00" for row in table for cell in row)
    (axes,) = family_plots.grid(of_family).axes
    assert "diverged" in {text.get_text() for text in axes.texts}


def test_the_pictures_of_the_readme_exist() -> None:
    for name in ("param_server", "ring_all_reduce", "scaling", "server_family", "timelines", "how_bottleneck"):
        assert (ROOT / "media" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "media" / "ring_all_reduce.gif").stat().st_size < 1.5e6


@pytest.mark.slow
def test_what_shows_an_experiment_that_is_not_complete_is_left_alone(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.complete(made_up) == ["scaling", FAMILY]  # the others lack the events of their timelines
    assert "param_server: 1 runs are missing, such as timeline-param_server-3.events.csv.gz" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no experiment is complete"):
        report.complete(made_up / "nothing")


# How it is computed


def test_what_is_collected_from_one_run(tmp_path: Path) -> None:
    name = "cnn-param_server-4-b128-all-s1"
    samples.keep(Store.load(tmp_path, "scaling"), declared()[name])
    results = collect.load("scaling", directory=tmp_path)
    table = pd.read_csv(tmp_path / "scaling.csv")
    (one,) = results.runs.to_dict("records")
    assert (one["strategy"], one["n_gpus"], one["workers"], one["seed"]) == ("param_server", 4, 3, 1)
    assert (one["samples"], one["counted"]) == (1_800, True)
    slowest = table.groupby("epoch")["epoch_s"].max()
    assert one["epoch_s"] == pytest.approx(slowest[1:].mean())
    assert one["mb_per_step"] == pytest.approx(table["bytes_sent"].sum() / table["step"].max() / 1e6)
    assert results.epochs["seconds"].tolist() == pytest.approx(slowest.cumsum().tolist())
    assert results.epochs["accuracy"].tolist() == pytest.approx(table["test_accuracy"].dropna().tolist())
    assert results.traffic["mb_sent"].sum() == pytest.approx(one["mb_per_step"])
    server = results.phases[results.phases["role"] == "server"]
    assert server["wait_s"].tolist() == pytest.approx(
        [table[(table["rank"] == 0) & (table["epoch"] > 1)]["wait_s"].mean()]
    )
    case = runs.strong("param_server", 4)
    third = results.epochs["accuracy"].iloc[2]
    first = int((results.epochs["accuracy"] >= third).to_numpy().argmax())
    assert collect.seconds_to(results, third, case).to_dict() == {1: results.epochs["seconds"].iloc[first]}
    assert collect.seconds_to(results, 0.999, case).isna().tolist() == [True]


def test_runs_that_were_not_made_alike_are_refused(tmp_path: Path) -> None:
    one, other = (declared()[f"cnn-ring_all_reduce-2-b128-all-s{seed}"] for seed in (0, 1))
    store = Store.load(tmp_path, "scaling")
    samples.keep(store, one)
    for changes in ({"options": other.recorded() | {"lr": 0.5}}, {"machine": samples.MACHINE | {"torch": "3.0"}}):
        samples.keep(store, other, **changes)
        with pytest.raises(UsageError, match="were not made alike"):
            collect.load("scaling", directory=tmp_path)
    samples.keep(store, other)
    assert len(collect.load("scaling", directory=tmp_path).runs) == 2


def test_results_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"python experiments/run\.py scaling"):
        collect.load("scaling", directory=tmp_path)


def test_spread_is_the_mean_and_the_standard_deviation() -> None:
    assert collect.spread([1.0, 2.0, 6.0], 1) == "3.0 ± 2.6"
    assert collect.spread([0.5], 0, 100) == "50 (n=1)"
    assert collect.spread([1.0, 2.0], 1) == "1.5 ± 0.7 (n=2)"
    assert collect.spread([], 1) == collect.spread([float("nan")], 1) == "-"


def test_a_ratio_is_taken_seed_by_seed() -> None:
    ours, peer = Case("param_server", 3), Case("param_server_builtin", 2)
    rates = {ours: {0: 10.0, 1: 30.0}, peer: {0: 5.0, 1: 10.0, 2: 1.0}}
    rows = [{**asdict(case), "seed": k, "samples_per_s": v} for case, of in rates.items() for k, v in of.items()]
    empty = pd.DataFrame()
    results = collect.Results(pd.DataFrame(rows), empty, empty, empty, {})
    assert collect.ratio_to(results, ours, peer).to_dict() == {0: 2.0, 1: 3.0}
