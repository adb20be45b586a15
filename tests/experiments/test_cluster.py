"""The runs of what a cluster would do: which they are, how their learning rates are found, what is shown of them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments import cluster, cluster_plots
from experiments.cluster import CLUSTER, RATES, SCALED, SEEDS, WORKERS, Case, finals, grid, tuned
from experiments.collect import KEPT
from records.errors import UsageError
from records.tables import aligned


def test_every_strategy_has_the_same_grid_and_its_best_rate() -> None:
    cases = grid(quick=False)
    for name in SCALED:
        for workers in WORKERS:
            rates = [case.lr for case in cases if (case.strategy, case.workers) == (name, workers)]
            assert rates == list(RATES)
    assert {case.seed for case in cases}.isdisjoint(SEEDS)
    rows = pd.DataFrame(
        {"question": "grid", "strategy": case.strategy, "workers": case.workers, "lr": case.lr,
         "accuracy": {RATES[1]: 0.8, RATES[2]: 0.8, RATES[3]: float("nan")}.get(case.lr, 0.7)}
        for case in cases
    )  # fmt: skip
    assert set(tuned(rows).values()) == {RATES[1]}, "of equal ones the smaller; what diverged is never the best"


def test_the_runs_differ_in_what_is_asked_only() -> None:
    rates = {(name, workers): 0.1 for name in SCALED for workers in WORKERS}
    cases = finals(rates, quick=False)
    assert len(cases) == len(set(cases))
    scaling = [case for case in cases if case.question == "scaling"]
    assert len(scaling) == len(SCALED) * len(WORKERS) * 2 * len(SEEDS)
    for case in cases:
        options = case.options(cluster.common(quick=True, data_dir="data"))
        assert options.strategy.roles(options.n_gpus or 0).count("worker") == case.workers
        assert bool(options.slow) == case.slow
    assert Case("slow", "server", 16, 0.1, 10, 1, slow=True).options({}).slow == ("16:5",)


@pytest.mark.slow
def test_quick_runs_can_be_made_and_shown(tmp_path: Path) -> None:
    cluster.record(tmp_path / CLUSTER, quick=True)
    assert {path.name for path in tmp_path.iterdir()} == {CLUSTER, "cluster.json"}
    assert json.loads((tmp_path / "cluster.json").read_text())["compute"] == "10ms"
    made = cluster.load(tmp_path)
    assert set(made.runs["question"]) == {"grid", "scaling", "slow", "racks"}
    assert made.runs["accuracy"].between(0, 1).all()
    for draw in (cluster_plots.scaling, cluster_plots.slow, cluster_plots.prediction):
        draw(made).canvas.draw()
    assert "ring" in aligned(cluster_plots.scaling_table(made, gbit=1), left=1)
    assert len(cluster_plots.racks_table(made)) == 10
    assert "digits" in cluster.provenance(made)
    assert not cluster.is_measured(tmp_path)


def test_without_results_it_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"experiments/run.py cluster"):
        cluster.load(tmp_path)
    assert not cluster.is_measured(tmp_path)


def test_what_is_kept_shows_the_servers_wall_and_the_rings_answer() -> None:
    runs = cluster.load(KEPT).of("scaling")
    most = runs[runs["workers"] == runs["workers"].max()].groupby(["strategy", "gbit"])["speedup"].mean()
    assert most["ring", 1] > 4 * most["server", 1]
    assert most["server", 10] > 4 * most["server", 1], "the link is what limits it"


def test_where_the_link_is_the_wall_a_simulation_is_within_ten_percent_of_what_was_measured() -> None:
    rows = cluster.load(KEPT).predictions
    wall = rows[rows["wall"] == "yes"]
    assert len(wall) > 20
    assert (wall["simulated_ms"] / wall["measured_ms"] - 1).abs().max() < 0.1
