"""`python -m gradwire plot`: one's own runs as curves, and one line for what cannot be drawn."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from gradwire.core.records.files import write_run
from gradwire.pictures import plot
from gradwire.pictures.finished import Run, find_runs
from tests.pictures.samples import METADATA, parameter_server_events, parameter_server_table

OPTIONS = {"model": "mlp", "dataset": "digits"}


def made(folder: Path, name: str, table: pd.DataFrame | None = None, **facts: Any) -> Run:
    table = parameter_server_table() if table is None else table
    write_run(folder, name, parameter_server_events(), table, METADATA | {"options": OPTIONS} | facts)
    (run,) = find_runs([str(folder / f"{name}.json")])
    return run


def diverged(value: float) -> pd.DataFrame:
    table = parameter_server_table(3)
    table.loc[table["epoch"] > 1, "train_loss"] = value
    return table


def test_a_curve_counts_seconds_and_bytes_from_the_start(tmp_path: Path) -> None:
    rows = plot.curve(made(tmp_path, "run"))
    assert list(rows["epoch"]) == [1, 2]
    assert list(rows["seconds"]) == [6, 13]  # the slowest rank, without evaluation
    assert list(rows["bytes"]) == [550, 1100]  # the server's 450 and a worker's 100
    assert list(rows["loss"]) == pytest.approx([1 / 3, 1 / 6])
    assert math.isnan(rows["accuracy"][0])
    assert rows["accuracy"][1] == 75


def panels(*runs: Run) -> list[str]:
    figure = plot.picture(runs)
    assert all(axes.get_xlabel() for axes in figure.axes)
    return [axes.get_title() for axes in figure.axes]


def test_what_no_run_measured_has_no_panel(tmp_path: Path) -> None:
    table = parameter_server_table()
    table[["test_loss", "test_accuracy", "bytes_sent"]] = None
    without = made(tmp_path, "without", table.astype(parameter_server_table().dtypes))
    assert panels(without) == ["loss against epochs", "loss against seconds"]
    assert panels(without, made(tmp_path, "with")) == [
        f"{measure} against {x}" for measure in ("accuracy", "loss") for x in ("epochs", "seconds", "bytes sent")
    ]


def legend(*runs: Run) -> list[str]:
    (found,) = plot.picture(runs).legends
    return [text.get_text() for text in found.get_texts()]


def test_each_run_has_its_name_beside_the_panels_and_a_style_of_its_own(tmp_path: Path) -> None:
    long = "param_server-4-digits-mlp-20261121-235519-557957-" + "x" * 150
    runs = [made(tmp_path, name) for name in ("a", long, "cost $1 to $2")]
    names = legend(*runs, made(tmp_path, "high", diverged(1e6)), made(tmp_path, "nan", diverged(np.nan)))
    assert names[0].split("\n")[0] == "a"
    assert names[1].startswith("param_server-4-digits-mlp-\n")
    assert names[2] == r"cost \$1 to \$2", "no mathematics"
    assert names[4] == "nan\n(diverged)"
    assert max(len(line) for name in names for line in name.split("\n")) <= 30
    assert max(name.count("\n") for name in names) < 8
    styles = {(style["color"], style["linestyle"]) for style in map(plot._style, range(plot.MOST))}
    assert len(styles) == plot.MOST


def test_the_picture_is_written_beside_the_runs_with_an_axis_that_shows_all_losses(
    tmp_path: Path, drawn: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "a.1")
    made(tmp_path, "b", diverged(1e6))
    for arguments, png, scale in (
        (["a.1.json"], "a.1.curves.png", "linear"),
        (["*.json", "--out", str(tmp_path / "mine.png")], "mine.png", "log"),
    ):
        paths = [str(tmp_path / name) if name.endswith(".json") else name for name in arguments]
        assert plot.main(paths) == 0
        assert capsys.readouterr() == (f"picture        {tmp_path / png}\n", "")
        assert (tmp_path / png).exists()
        assert drawn.pop().axes[-1].get_yscale() == scale


def test_runs_of_several_seeds_are_one_line_in_the_shade_of_their_range(tmp_path: Path) -> None:
    runs = []
    for seed, accuracy in enumerate((0.7, 0.8)):
        table = parameter_server_table()
        table.loc[table["test_accuracy"].notna(), "test_accuracy"] = accuracy
        runs.append(made(tmp_path, f"seed {seed}", table, options=OPTIONS | {"seed": seed}))
    axes = plot.picture(runs).axes[0]
    (line,), (shade,) = axes.get_lines(), axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [75]
    assert set(np.asarray(shade.get_paths()[0].vertices)[:, 1].tolist()) == {70, 80}
    assert not plot.picture(runs[:1]).axes[0].collections, "one seed has no range"


# Of a sweep

NAMES = ["strategy", "parameters"]


def sweep(**columns: Any) -> pd.DataFrame:
    rows = [
        {"strategy": strategy, "parameters": parameters, "workers": workers, "compute_s": 1.0}
        | {name: value(strategy, parameters, workers) for name, value in columns.items()}
        for strategy in ("server", "ring", "sharded")
        for parameters in ("1e6", "1e8")
        for workers in (1, 2, 4)
    ]
    return pd.DataFrame(rows)


def test_lines_that_are_the_same_are_one_with_both_names(tmp_path: Path, drawn: list[Figure]) -> None:
    def seconds(strategy: str, parameters: str, workers: int) -> float:
        return float(parameters) * (workers if strategy == "server" else 1.0 + 0.001 * (strategy == "ring"))

    plot.draw_sweep(sweep(seconds_a_step=seconds), NAMES, tmp_path / "a.png", "bandwidth 1gbit, latency 50us")
    (figure,) = drawn
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "server, 1e6", "server, 1e8", "ring and sharded, 1e6", "ring and sharded, 1e8", "mostly waiting",
    ]  # fmt: skip
    assert figure.axes[0].get_title() == "A step in virtual time\nbandwidth 1gbit, latency 50us"
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()[:4]}
    assert len(styles) == 4
    assert (tmp_path / "a.png").exists()
