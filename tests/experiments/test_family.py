"""The comparison of the server family: fair as declared, tuned as measured; what is counted, and what is kept."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments import cases, family, family_plots, family_runs, lost_updates, report, runs
from experiments.collect import KEPT
from experiments.family_runs import FAMILY, GRID, SERVERS, TUNING_SEEDS
from experiments.store import Store, same_run
from records.files import EVENTS_SUFFIX, load_events
from records.tables import applied
from strategies.asynchronous_server.inconsistent_reads import InconsistentReads
from tests.experiments.test_run import command, counts
from tests.ranks import LIMIT
from training.options import option_names

RATES = dict.fromkeys(SERVERS, 0.1)
VARIED = ("strategy", "lr", "seed", "slow", "events", "epochs", "train_size", "run_name")


# What is declared


def test_all_servers_share_one_grid_and_all_else() -> None:
    tuning, finals = family_runs.tuning(), family_runs.finals(RATES)
    alike = [
        {k: v for k, v in one.recorded().items() if k in option_names() and k not in VARIED}
        for one in (*tuning, *finals)
    ]
    assert all(options == alike[0] for options in alike)
    assert {one.train_size for one in (*tuning, *finals) if "apart" not in str(one.run_name)} == {
        family_runs.TRAIN_SIZE
    }
    assert alike[0]["momentum"] == 0.0
    assert {one.strategy.roles(one.n_gpus or 0).count("worker") for one in (*tuning, *finals)} == {3}
    assert not set(TUNING_SEEDS) & set(runs.SEEDS)
    for server, strategy in SERVERS.items():
        mine = [one for one in tuning if f"-{server}-" in str(one.run_name)]
        assert sorted((one.seed, one.lr) for one in mine) == [(seed, lr) for seed in TUNING_SEEDS for lr in GRID]
        assert {one.epochs for one in mine} == {family_runs.EPOCHS["tuning"]}
        for part, slow in family_runs.SLOW.items():
            if part in family_runs.OF_SYNCHRONOUS and server not in family_runs.SYNCHRONOUS:
                continue
            compared = [one for one in finals if str(one.run_name).startswith(f"{part}-{server}-")]
            assert [one.seed for one in compared] == list(runs.SEEDS)
            assert {(one.slow, one.epochs, one.lr) for one in compared} == {(slow, family_runs.EPOCHS[part], 0.1)}
            mine += compared
        assert all(one.strategy == strategy and one.strategy is not strategy for one in mine)
    quick = [*family_runs.tuning(quick=True), *family_runs.finals(RATES, quick=True)]
    names = [one.run_name for one in (*tuning, *finals, *quick)]
    assert len(names) == len(set(names))


def test_a_slow_worker_makes_another_run() -> None:
    one = family_runs.finals(RATES)[len(SERVERS)]
    assert one.slow == ("3:5",)
    as_json = json.loads(json.dumps(one.recorded()))
    assert same_run(one, as_json)
    assert not same_run(one, as_json | {"slow": []})
    assert not same_run(one, {name: value for name, value in as_json.items() if name != "slow"})


def test_another_server_has_a_name_and_a_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVERS, "inconsistent_reads", InconsistentReads())
    assert family.name_of("inconsistent_reads") == "inconsistent reads"
    assert family_plots.colour_of("inconsistent_reads") not in family_plots.COLOURS.values()
    assert "inconsistent_reads" in {str(one.run_name).split("-")[1] for one in family_runs.tuning()}


# What is tuned


def test_each_server_gets_its_best_rate_with_a_margin_below_where_it_diverges() -> None:
    rows = [
        {"server": server, "lr": lr, "seed": seed, "accuracy": 0.8 + number / 100}
        for server in SERVERS
        for seed in TUNING_SEEDS
        for number, lr in enumerate(GRID)
    ]
    grid = pd.DataFrame(rows)
    assert set(family_runs.tuned(grid).values()) == {GRID[-2]}, "of the last it is not known how near the edge is"
    grid.loc[(grid["server"] == "async") & (grid["lr"] >= 0.2), "accuracy"] = float("nan")
    grid.loc[(grid["server"] == "downpour") & (grid["lr"] == 0.4), "accuracy"] = 0.1
    grid.loc[(grid["server"] == "sync") & (grid["lr"] == 0.05), "accuracy"] = 0.9
    grid.loc[grid["server"] == "bounded", "accuracy"] = float("nan")
    expected = {"sync": 0.05, "backup": 0.2, "bounded": GRID[0], "async": 0.05, "downpour": 0.1}
    assert family_runs.tuned(grid) == expected


# What is run


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.timeout(20 * LIMIT)
def test_a_quick_run_end_to_end_and_its_notebook(tmp_path: Path) -> None:
    arguments = (FAMILY, "--quick", "--results_dir", str(tmp_path), "--device", "cpu")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    tuning = family_runs.tuning(quick=True)
    rates = family_runs.tuned(family_runs.grid(Store.load(tmp_path, FAMILY), quick=True))
    finals = family_runs.finals(rates, quick=True)
    assert counts(done.stdout) == [len(tuning) + len(finals) + 2, 0, 0]  # and the timeline, and the lost updates
    results = family.load(tmp_path)
    assert len(results.runs) == len(finals)
    assert (results.epochs.groupby(["part", "server", "seed"])["updates"].diff().dropna() > 0).all()
    shares = results.samples.groupby(["part", "server", "seed"])["share"].sum()
    assert shares.tolist() == pytest.approx([1.0] * len(shares))
    updates = results.epochs.groupby(["part", "server"])["updates"].max()
    gradients = results.staleness.groupby(["part", "server"])["count"].sum()
    for part in family_runs.OF_ALL:
        assert gradients[part, "async"] == updates[part, "async"], "one version an update, one gradient a version"
    assert results.staleness.query("server == 'bounded'")["staleness"].max() <= (2 * 2 + 1) * (3 - 1)
    dropped = results.runs.groupby("server")["dropped"].max()
    assert dropped["sync"] == dropped["async"] == 0
    assert 0 < dropped["backup"] < 50
    report.execute(next(path for path in report.NOTEBOOKS if "stale" in path.name), tmp_path)


@pytest.mark.slow
def test_pushed_increments_are_all_kept(tmp_path: Path) -> None:
    lost_updates.record(tmp_path / "lost.csv")
    table = pd.read_csv(tmp_path / "lost.csv")
    assert len(table) == len(lost_updates.CLIENTS) * len(lost_updates.MODES) * lost_updates.REPEATS
    assert (table["made"] == table["clients"] * lost_updates.UPDATES).all()
    complete = table[(table["mode"] == "push") | (table["clients"] == 1)]
    assert (complete["kept"] == complete["made"]).all()
    assert (table["kept"] <= table["made"]).all()


# What is shown


def test_the_committed_results_are_those_of_the_declared_runs() -> None:
    store = Store.load(KEPT, FAMILY)
    if not store.metadata:
        pytest.skip(f"python experiments/run.py {FAMILY} has not been run yet")
    results = family.load(KEPT)
    declared = [*family_runs.tuning(), family_runs.timeline(), *family_runs.finals(results.rates)]
    assert set(store.metadata) == {str(one.run_name) for one in declared}
    assert not any(str(entry["git_commit"]).endswith("-dirty") for entry in store.metadata.values())


def test_one_slow_worker_costs_a_server_with_a_backup_worker_little() -> None:
    if not Store.load(KEPT, FAMILY).metadata:
        pytest.skip(f"python experiments/run.py {FAMILY} has not been run yet")
    steps = family.load(KEPT).runs.groupby(["server", "part"])["step_s"].mean()
    assert steps["sync", "slow"] / steps["sync", "final"] > steps["backup", "slow"] / steps["backup", "final"]
    assert steps["sync", "apartslow"] / steps["sync", "apart"] > steps["backup", "apartslow"] / steps["backup", "apart"]


def test_the_timeline_of_the_asynchronous_server_shows_the_stalest_gradient() -> None:
    name = family_runs.timeline().run_name
    if not (KEPT / f"{name}{EVENTS_SUFFIX}").exists():
        pytest.skip(f"python experiments/run.py {FAMILY} has not been run yet")
    versions = applied(load_events(KEPT / str(name)))[["version_read", "version_applied"]]
    read, reached = versions.loc[(versions["version_applied"] - versions["version_read"]).idxmax()]
    (axes,) = cases.stale_timeline(KEPT).axes
    assert f"{read}→{reached}" in {text.get_text() for text in axes.texts}
