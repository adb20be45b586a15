"""The pictures of a sweep: every line is seen, or named with the one that it equals."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gradwire.pictures import plot

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
