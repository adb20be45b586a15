"""The tidy files of an experiment: what is written is read again; only a run that is whole and good is there."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.cases import FAMILY, FAMILY_SERVERS, Comparison, Family
from experiments.real import DIVERGED, Runs, same_run
from experiments.simulated import Rows
from gradwire.core.records.errors import UsageError
from strategies.asynchronous_server.downpour import Downpour
from tests.experiments import samples

ONE, OTHER = (replace(one, device="cpu") for one in Comparison("scaling").finals(None)[:2])


def test_one_table_has_all_runs_and_the_facts_the_options_that_they_share(tmp_path: Path) -> None:
    store = Runs(tmp_path, "scaling")
    for one in (ONE, OTHER, replace(ONE, seed=1, run_name="again")):
        samples.keep(store, one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scaling.csv", "scaling.json"]
    table = pd.read_csv(tmp_path / "scaling.csv")
    assert {"run", "strategy", "epoch", "rank", "epoch_s"} <= set(table.columns)
    assert not table.duplicated(["run", "epoch", "rank"]).any()
    again = Runs(tmp_path, "scaling")
    assert all(again.has(one) for one in (ONE, OTHER))
    rows = again.rows(str(ONE.run_name)).drop(columns="run").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, samples.epochs_of(ONE), rtol=1e-6)
    kept = json.loads((tmp_path / "scaling.json").read_text())
    assert kept["options"]["lr"] == ONE.lr
    assert kept["runs"]["again"]["options"]["seed"] == 1
    assert not {"results_dir", "run_name"} & set(kept["options"])
    assert set(kept["runs"]) == {ONE.run_name, OTHER.run_name, "again"}


def test_a_run_that_is_made_again_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    store = Runs(tmp_path, FAMILY)
    finals = Family(FAMILY).finals(dict.fromkeys(FAMILY_SERVERS, 0.1))
    one = next(one for one in finals if one.strategy.traits.asynchronous)
    samples.keep(store, one)
    samples.keep(store, one)
    again = Runs(tmp_path, FAMILY)
    assert len(again.table) == len(samples.epochs_of(one))
    assert len(again.staleness(str(one.run_name))) == 9


def test_only_the_same_whole_good_run_is_there(tmp_path: Path) -> None:
    store = Runs(tmp_path, "scaling")
    assert not store.has(ONE)
    samples.keep(store, ONE)
    assert store.has(ONE)
    assert store.has(replace(ONE, data_dir="elsewhere", timeout=5.0))
    assert store.has(replace(ONE, device="auto")), "on any device"
    for change in ({"lr": 0.1}, {"epochs": 1}, {"seed": 7}, {"model": "mlp"}, {"n_gpus": 7}, {"device": "cuda"}):
        assert not store.has(replace(ONE, **change))
    samples.keep(store, ONE, replicas_identical=False)
    assert store.has(ONE) is not ONE.strategy.traits.agree
    table = samples.epochs_of(ONE)
    store.add(ONE, (table[table["epoch"] < ONE.epochs], samples.metadata_of(ONE)))
    assert not store.has(ONE), "its last epoch is missing"


def test_an_option_that_came_later_counts_as_its_default() -> None:
    one = replace(ONE, momentum=0.0, strategy=Downpour(n_push=4))
    written = json.loads(json.dumps(one.recorded()))
    assert same_run(one, {name: value for name, value in written.items() if name not in ("jitter", "n_fetch")})
    older = {name: value for name, value in written.items() if name != "n_fetch"}
    assert not same_run(replace(one, strategy=Downpour(n_push=4, n_fetch=2)), older)


def test_a_run_that_diverged_is_there_without_rows(tmp_path: Path) -> None:
    store, one = Runs(tmp_path, FAMILY), replace(Family(FAMILY).grid()[0], device="cpu")
    store.add(one, (pd.DataFrame(), samples.metadata_of(one) | {DIVERGED: "the loss became nan"}))
    again = Runs(tmp_path, FAMILY)
    assert again.has(one)
    assert not again.has(replace(one, epochs=7))
    assert not len(again.table)


def test_a_run_in_one_file_only_is_not_there(tmp_path: Path) -> None:
    """As SIGKILL between two renames leaves it."""
    store = Runs(tmp_path, "scaling")
    samples.keep(store, ONE)
    older = {path: path.read_bytes() for path in store.paths if path.exists()}
    samples.keep(store, OTHER)
    for path, content in older.items():
        newer = path.read_bytes()
        path.write_bytes(content)
        torn = Runs(tmp_path, "scaling")
        assert torn.has(ONE)
        assert not torn.has(OTHER)
        path.write_bytes(newer)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "a,b\n1,2\n", '{"all": {}, "runs": {"x": {}}}'])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, suffix: str, text: str) -> None:
    samples.keep(Runs(tmp_path, "scaling"), ONE)
    (tmp_path / f"scaling{suffix}").write_text(text)
    with pytest.raises(UsageError, match=r"^[^\n]*the results of scaling are damaged [^\n]*measure again$"):
        Runs(tmp_path, "scaling")
    (tmp_path / "cluster.csv").write_text("question\n")
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(UsageError, match=r"^[^\n]*the results of cluster are damaged [^\n]*measure again$"):
        Rows(tmp_path, "cluster")


def test_a_line_names_the_machine_of_the_runs_in_virtual_time_where_it_is_another(tmp_path: Path) -> None:
    rows = samples.SIMULATED["cluster"].open(tmp_path)
    rows.facts |= {"machine": samples.MACHINE, "git_commit": "aaaaaaaaaa"}
    assert "virtual" not in rows.provenance()
    rows.facts["virtual"] = {"machine": samples.MACHINE | {"cpu": "Slide rule"}, "git_commit": "bbbbbbbbbb"}
    measured, _, virtual = rows.provenance().partition("; runs in virtual time: ")
    assert measured.endswith("Abacus, 2 cores, torch 2.0, commit aaaaaaaaaa")
    assert virtual == "Slide rule, 2 cores, torch 2.0, commit bbbbbbbbbb"
