"""The runs of the whole family: which they are, how their learning rates are found, what is shown of them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments import whole_family, whole_plots
from experiments.collect import KEPT
from experiments.whole_family import (
    ALIKE,
    BOUNDS,
    EVERY,
    LOCAL_STEPS,
    RANKS,
    RATES,
    REAL,
    SEEDS,
    VALUES,
    VIRTUAL,
    WHOLE,
    WORKERS,
    Case,
    finals,
    grid,
    names,
    tuned,
)
from records.errors import UsageError
from records.tables import aligned
from strategies import STRATEGIES, RunSize
from strategies.lock_free.hogwild import Hogwild
from strategies.single import Single

PLACES = {REAL: (RANKS,), VIRTUAL: WORKERS}
SHARED = whole_family.common(quick=True, data_dir="data")


def test_what_it_names_can_be_run_and_drawn() -> None:
    assert {type(one) for one in EVERY.values()} <= set(STRATEGIES.values()) - {Single}
    assert set(whole_plots.COLOURS) == set(EVERY)
    for where in PLACES:
        for name in names(where):
            case = Case("final", where, name, PLACES[where][-1], 0.1, 1, 1)
            options = case.options(SHARED)
            workers = options.roles.count("worker")
            assert len(options.roles) == RANKS if where == REAL else workers == WORKERS[-1]
            options.strategy.check(RunSize(len(options.roles), workers, 12, shared_memory=where == REAL))


@pytest.mark.parametrize("where", [REAL, VIRTUAL])
def test_all_have_the_same_grid_and_their_best_rate(where: str) -> None:
    cases = grid(where, quick=False)
    for name in names(where):
        for workers in PLACES[where]:
            rates = [case.lr for case in cases if (case.name, case.workers) == (name, workers)]
            assert rates == ([] if name in ALIKE else list(RATES))
    assert {case.seed for case in cases}.isdisjoint(SEEDS)
    rows = pd.DataFrame(cases).assign(epoch=3)
    best = {name: RATES[2 if name == "server" else 1] for name in names(where)}
    rows["accuracy"] = [
        0.9 if case.lr == best[case.name] else float("nan") if case.lr == RATES[-1] else 0.5 for case in cases
    ]
    found = tuned(rows)
    for name in names(where):
        for workers in PLACES[where]:
            assert found[where, name, workers] == RATES[2 if name in (*ALIKE, "server") else 1]


def test_the_runs_differ_in_what_is_asked_only() -> None:
    rates = {(where, name, n): 0.1 for where in PLACES for name in names(where) for n in PLACES[where]}
    virtual, real = finals(VIRTUAL, rates, quick=False), finals(REAL, rates, quick=False)
    assert len(set(virtual + real)) == len(virtual + real)
    shown = [case for case in virtual if case.question == "final"]
    assert len(shown) == len(names(VIRTUAL)) * len(WORKERS) * 2 * len(SEEDS)
    assert {case.name for case in virtual if case.question == "slow"} == set(names(VIRTUAL))
    for case in virtual:
        assert bool(case.options({}).slow) == (case.question == "slow")
    steps, bounds = (Case("axis", VIRTUAL, name, 16, 0.1, 1, 1, VALUES[name][0]) for name in (LOCAL_STEPS, BOUNDS))
    assert steps.options({}).recorded()["local_steps"] == 1
    assert (bounds.options({}).recorded()["max_staleness"], bounds.options({}).recorded()["aggregate"]) == (0, 16)
    rates[VIRTUAL, "server", WORKERS[0]] = 0.2
    for case in finals(VIRTUAL, rates, quick=False):
        synchronous = (case.name == "server" and case.workers == WORKERS[0]) or (case.name, case.value) == (BOUNDS, 0)
        if case.question == "axis" or case.name == "server":
            assert case.lr == (0.2 if synchronous else 0.1)
    lost = [case for case in real if case.question == "lost"]
    assert {case.workers for case in lost} == {1, 2, 4}
    assert all(case.strategy == Hogwild(count_lost=True) for case in lost)


def test_a_loss_that_became_nan_is_a_result(tmp_path: Path) -> None:
    rows = whole_family.run_case(Case("grid", VIRTUAL, "ring", 2, 1e30, 1, 0), SHARED)
    assert rows["epoch"].tolist() == [1]
    assert "accuracy" not in rows


@pytest.mark.slow
def test_quick_runs_can_be_made_and_shown(tmp_path: Path) -> None:
    whole_family.record(tmp_path / WHOLE, quick=True)
    assert {path.name for path in tmp_path.iterdir()} == {WHOLE, "whole_family.json"}
    assert json.loads((tmp_path / "whole_family.json").read_text())["compute"] == whole_family.COMPUTE
    made = whole_family.load(tmp_path)
    assert set(made.rows["question"]) == {"grid", "final", "slow", "axis", "lost"}
    assert made.of("final", REAL)["accuracy"].between(0, 1).all()
    few = WORKERS[0]
    figures = [whole_plots.curves(made, REAL), whole_plots.curves(made, VIRTUAL, few, 1)]
    figures += [whole_plots.summary(made), whole_plots.slow(made), whole_plots.axis(made), whole_plots.distances(made)]
    for figure in figures:
        figure.canvas.draw()
    tables = [whole_plots.grid_table(made, REAL), whole_plots.final_table(made, VIRTUAL, few, 1)]
    tables += [whole_plots.two_by_two(made), whole_plots.lost_table(made), whole_plots.overlap_table(made)]
    assert all(len(aligned(table, left=1).splitlines()) == len(table) for table in tables)
    assert len(whole_plots.final_table(made, REAL)) == 1 + len(names(REAL))
    hidden = made.of("final")[lambda rows: rows["name"] == "overlapped ring"]["hidden_communication"]
    assert hidden.between(0, 1).all()
    assert "digits" in whole_family.provenance(made)
    assert not whole_family.is_measured(tmp_path)


def test_without_results_it_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"experiments/run.py whole_family"):
        whole_family.load(tmp_path)
    assert not whole_family.is_measured(tmp_path)


def test_what_is_kept_shows_the_wall_and_who_waits() -> None:
    kept = whole_family.load(KEPT)
    ends = whole_family.last_epochs(kept.of("final"))
    wall = ends[(ends["workers"] == WORKERS[-1]) & (ends["gbit"] == 1)].groupby("name")["seconds"].mean()
    assert wall["server"] > 2 * wall["4 servers"] > 4 * wall["ring"]
    usual = ends[(ends["workers"] == WORKERS[0]) & (ends["gbit"] == 10)].groupby("name")["seconds"].mean()
    times = whole_family.last_epochs(kept.of("slow")).groupby("name")["seconds"].mean() / usual
    assert times["ring"] > 2
    assert times["AD-PSGD"] < 1.5
    assert set(whole_family.finals(VIRTUAL, tuned(kept.rows), quick=False)) == {
        Case(*values) for values in kept.of("final").pipe(lambda rows: kept.rows[kept.rows["where"] == VIRTUAL])
        .query("question != 'grid'")[[*whole_family._CASE]].drop_duplicates().itertuples(index=False)
    }  # fmt: skip
