"""What is kept of experiments: one table and its facts, taken for the same run only, and damage is told."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments import real
from experiments.cases import Comparison
from experiments.real import Runs as Kept
from experiments.simulated import Rows
from gradwire.core.records.errors import UsageError
from strategies.asynchronous_server.downpour import Downpour
from tests.experiments import samples

ONE, OTHER = (replace(final, device="cpu") for final in Comparison("scaling").finals(None)[:2])


def test_one_table_has_all_runs_and_the_facts_the_options_that_they_share(tmp_path: Path) -> None:
    store = Kept(tmp_path, "scaling")
    for options in (ONE, OTHER, replace(ONE, seed=1, run_name="again"), ONE):
        samples.keep(store, options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scaling.csv", "scaling.json"]
    again = Kept(tmp_path, "scaling")
    assert not again.table.duplicated(["run", "epoch", "rank"]).any(), "what is made again takes the older one's place"
    assert again.has(ONE)
    assert again.has(OTHER)
    rows = again.rows(str(ONE.run_name)).drop(columns="run").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, samples.epochs_of(ONE), rtol=1e-6)
    kept = json.loads((tmp_path / "scaling.json").read_text())
    assert (kept["options"]["lr"], kept["runs"]["again"]["options"]["seed"]) == (ONE.lr, 1)
    assert not {"results_dir", "run_name"} & set(kept["options"])
    assert set(kept["runs"]) == {ONE.run_name, OTHER.run_name, "again"}


def test_only_the_same_whole_good_run_is_there(tmp_path: Path) -> None:
    store = Kept(tmp_path, "scaling")
    assert not store.has(ONE)
    samples.keep(store, ONE)
    assert store.has(replace(ONE, data_dir="elsewhere", timeout=5.0))
    assert store.has(replace(ONE, device="auto")), "on any device"
    for change in ({"lr": 0.1}, {"epochs": 1}, {"seed": 7}, {"model": "mlp"}, {"n_gpus": 7}, {"device": "cuda"}):
        assert not store.has(replace(ONE, **change))
    samples.keep(store, ONE, replicas_identical=False)
    assert store.has(ONE) is not ONE.strategy.traits.agree
    table = samples.epochs_of(ONE)
    store.add(ONE, (table[table["epoch"] < ONE.epochs], samples.metadata_of(ONE)))
    assert not store.has(ONE), "its last epoch is missing"
    store.add(ONE, (pd.DataFrame(), samples.metadata_of(ONE) | {real.DIVERGED: "the loss became nan"}))
    again = Kept(tmp_path, "scaling")
    assert again.has(ONE), "without rows: it diverged"
    assert not again.has(replace(ONE, epochs=7))


def test_an_option_that_came_later_counts_as_its_default() -> None:
    options = replace(ONE, momentum=0.0, strategy=Downpour(n_push=4))
    written = json.loads(json.dumps(options.recorded()))
    assert real.same_run(options, {name: value for name, value in written.items() if name not in ("jitter", "n_fetch")})
    older = {name: value for name, value in written.items() if name != "n_fetch"}
    assert not real.same_run(replace(options, strategy=Downpour(n_push=4, n_fetch=2)), older)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "a,b\n1,2\n", '{"all": {}, "runs": {"x": {}}}'])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, suffix: str, text: str) -> None:
    samples.keep(Kept(tmp_path, "scaling"), ONE)
    (tmp_path / f"scaling{suffix}").write_text(text)
    with pytest.raises(UsageError, match=r"^[^\n]*the results of scaling are damaged [^\n]*measure again$"):
        Kept(tmp_path, "scaling")
    (tmp_path / "cluster.csv").write_text("question\n")
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(UsageError, match=r"^[^\n]*the results of cluster are damaged [^\n]*measure again$"):
        Rows(tmp_path, "cluster")
