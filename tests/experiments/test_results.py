"""What is kept, what is computed from it, and what is shown: notebooks, tables and pictures agree with the results."""

import ast
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments import cases, measured, report
from experiments.cases import COMPARED, RING_TRACE, Comparison, Setup
from experiments.grid import KEPT, ROOT
from experiments.measured import CLUSTER, EXPERIMENTS, WHOLE
from experiments.real import Runs
from experiments.simulated import BITS, so_far
from experiments.text_cases import OF_SELDOM, OF_TEXT, SELDOM, TEXT, at, depends_on_time, networks_of
from gradwire.core.records.errors import UsageError
from gradwire.core.records.tables import COLUMNS
from strategies import STRATEGIES, Strategy
from tests.experiments import samples

pytestmark = pytest.mark.xdist_group("experiments")  # the tables of the module are made once
DECLARED = {str(final.run_name): final for name in COMPARED for final in EXPERIMENTS[name].finals(None)}


@pytest.fixture(scope="module", autouse=True)
def _tables_are_made_once() -> Iterator[None]:
    """Make the tables of each run of a folder once for all tests, which takes most of the time."""
    known, tables_of = dict[tuple[Path, str], dict[str, pd.DataFrame]](), measured._tables_of

    def made(store: Runs, name: str, *of: Any) -> dict[str, pd.DataFrame]:
        key = store.folder, name
        return known.get(key) or known.setdefault(key, tables_of(store, name, *of))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "_tables_of", made)
        yield


compared = cache(partial(measured.comparison, directory=KEPT))
of_family = cache(partial(measured.family, KEPT))


# What is kept


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_committed_results_are_those_of_the_declared_runs(experiment: str) -> None:
    declared = EXPERIMENTS[experiment]
    assert declared.missing(KEPT) == []
    kept = declared.open(KEPT)
    grid, finals = declared.grid(), declared.finals(declared.tuned(kept))
    if isinstance(kept, Runs):
        assert set(kept.runs) == {str(run.run_name) for run in (*grid, *finals)}
        assert not any(str(entry["git_commit"]).endswith("-dirty") for entry in kept.runs.values())
    else:
        assert kept.cases == {*grid, *finals}


def test_the_cnn_passes_88_percent_with_every_strategy_that_communicates() -> None:
    runs = compared().runs
    runs = runs[(runs["model"] == "cnn") & (runs["train_size"] == 0) & (runs["global_batch_size"] == cases.BATCH)]
    communicating = runs[runs["strategy"] != "none"]
    assert set(communicating["strategy"]) == {run.strategy.name for run in DECLARED.values()} - {"none"}
    assert (communicating["accuracy"] > 0.88).all()
    assert measured.seconds_to(compared(), 0.999, cases.STRONG[0]).isna().tolist() == [True] * len(cases.SEEDS)


def test_a_server_is_a_wall_that_a_ring_has_not_and_a_simulation_says_so_within_ten_percent() -> None:
    runs = measured.simulated(CLUSTER, KEPT).of("scaling", workers=64)
    speedup = runs.groupby(["name", "gbit"])["speedup"].mean()
    assert speedup["ring", 1] > 4 * speedup["server", 1]
    assert speedup["server", 10] > 4 * speedup["server", 1], "the link is what limits it"
    wall = measured.predictions(KEPT).query("wall == 'yes'")
    assert len(wall) > 20
    assert (wall["simulated_ms"] / wall["measured_ms"] - 1).abs().max() < 0.1


@pytest.mark.parametrize(("name", "strategies"), [(TEXT, OF_TEXT), (SELDOM, OF_SELDOM)])
def test_what_does_not_ask_who_comes_first_learns_the_same_text_at_every_bandwidth(
    name: str, strategies: dict[str, Strategy]
) -> None:
    kept = measured.simulated(name, KEPT)
    found = kept.of("final", seed=1).groupby("name")[BITS].nunique()
    assert set(found.index) == set(strategies)
    assert name == SELDOM or all(n == 1 for of, n in found.items() if not depends_on_time(str(of)))
    networks = networks_of(kept)
    full, slow = (at(kept, gbit).set_index(["name", "seed"]).sort_index() for gbit in (networks[0], networks[-1]))
    assert list(full.index) == list(slow.index)
    assert (slow["seconds"] > full["seconds"])[["ring", *({"server", "asynchronous"} & set(strategies))]].all()


# How it is computed


def test_what_there_was_at_the_end_of_each_epoch() -> None:
    rows = []
    for epoch in (1, 2):
        shared: dict[str, Any] = dict.fromkeys(COLUMNS, float("nan")) | {"epoch": epoch}
        server = {"test_accuracy": epoch / 10, "epoch_s": 2.0, "step": 7 * epoch, "staleness_mean": epoch}
        rows.append(shared | {"rank": 0, "role": "server", "bytes_sent": 1e6} | server)
        for k in (1, 2):
            worker = {"samples": 160, "epoch_s": 2, "forward_s": k, "compress_s": 2 * k, "wait_s": 1}
            rows.append(shared | {"rank": k, "role": "worker", "bytes_sent": 2e6, "value_bytes": 5e5} | worker)
    table = so_far(pd.DataFrame(rows), STRATEGIES["async_param_server"](), 32)
    expected = {
        "epoch": [1, 2], "accuracy": [0.1, 0.2], "seconds": [2, 4], "steps": [10, 20], "updates": [7, 14],
        "computed": [1.5, 3], "coded": [3, 6], "mb": [5, 10], "code_mb": [1, 2], "staleness": [1, 2],
        "waited": [0.5, 0.5],
    }  # fmt: skip
    assert table[list(expected)].to_dict("list") == expected


def test_runs_that_were_not_made_as_declared_or_elsewhere_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups = [Setup("param_server", 4), Setup("ring_all_reduce", 2)]
    monkeypatch.setattr(cases, "SEEDS", (1,))
    monkeypatch.setattr(cases, "COMPARED", {"scaling": setups, "param_server": setups[:1]})
    monkeypatch.setattr(cases, "TIMELINES", {})
    store, two = Runs(tmp_path, "scaling"), Comparison("scaling").finals(None)
    samples.keep(store, two[0])
    samples.keep(store, two[1], options=two[1].recorded() | {"lr": 0.5})
    with pytest.raises(UsageError, match=rf"1 runs of scaling are missing, such as {two[1].run_name}; make them with"):
        measured.comparison("scaling", directory=tmp_path)
    samples.keep(store, two[1])
    assert len(measured.comparison("scaling", directory=tmp_path).runs) == 2
    elsewhere = Runs(tmp_path, "param_server")
    elsewhere.facts["machine"] = samples.MACHINE | {"torch": "3.0"}
    samples.keep(elsewhere, two[0])
    with pytest.raises(UsageError, match="were not made alike"):
        measured.comparison("scaling", "param_server", directory=tmp_path)


def test_results_that_are_not_there_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for load in (partial(measured.comparison, "scaling"), partial(measured.simulated, "dgs"), measured.family):
        with pytest.raises(UsageError, match=r"python experiments/run\.py (scaling|dgs|server_family)"):
            load(directory=tmp_path)
    with pytest.raises(UsageError, match="no experiment is complete"):
        report.complete(tmp_path)
    for path in KEPT.iterdir():
        if path.name != RING_TRACE and path.stem != WHOLE:
            (tmp_path / path.name).symlink_to(path)
    assert report.complete(tmp_path) == [name for name in EXPERIMENTS if name not in ("ring_all_reduce", WHOLE)]
    said = capsys.readouterr().err
    assert "ring_all_reduce: 1 runs are missing, such as ring_trace.csv" in said
    assert "python experiments/run.py whole_family makes them" in said


# What is shown


def _texts(node: Any) -> list[str]:
    """Return what each cell has printed or said, pictures left out."""
    outputs = ([*cell.outputs] for cell in node.cells if cell.cell_type == "code")
    return ["".join(cell.get("text", cell.get("data", {}).get("text/markdown", "")) for cell in of) for of in outputs]


LONG = ("4_not_waiting", "8_compression", "9_whole_family", "10_language_model")


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.exhaustive if path.stem in LONG else ())
        for path in report.NOTEBOOKS
    ],
)
def test_a_notebook_shows_the_committed_results(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, in which no figure need be rendered."""
    import nbformat  # here, for it takes seconds to load

    monkeypatch.setattr(measured, "family", of_family)
    saved, names, said, drawn = nbformat.read(notebook, as_version=4), dict[str, Any](), [], list[Figure]()
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    for cell in cells:
        tree, names["shown"] = ast.parse(cell.source.replace("%matplotlib inline", "")), None
        if isinstance(last := tree.body[-1], ast.Expr):
            tree.body[-1] = ast.Assign([ast.Name("shown", ast.Store())], last.value)
        with redirect_stdout(StringIO()) as printed:
            exec(compile(ast.fix_missing_locations(tree), notebook.name, "exec"), names)
        drawn += [names["shown"]] if isinstance(names["shown"], Figure) else []
        said.append(printed.getvalue() + getattr(names["shown"], "data", ""))
    assert said == _texts(saved), "python experiments/report.py brings the notebooks up to date"
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs) == len(drawn) >= 1


@pytest.mark.parametrize("path", report.TABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_of_the_readmes_shows_the_committed_results(path: Path) -> None:
    text, results = path.read_text(encoding="utf-8"), compared()
    edited = re.sub(r"\| (\d)(\d\.\d\d ±)", lambda digit: f"| {(int(digit[1]) + 1) % 10}{digit[2]}", text, count=1)
    assert report.with_table(edited, results, report.TABLES[path]) == text != edited
