"""The experiments: fair as declared, run as declared; the notebooks and the README show the committed results."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest

from experiments import cases, collect, plots, report, run, runs
from records.files import load_metadata
from strategies import STRATEGIES
from training import Options
from training.failures import RunFailed

ROOT = Path(__file__).parent.parent
KEPT = collect.KEPT


def command(*arguments: str, limit: float = 110) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "experiments/run.py", *arguments]
    return subprocess.run(python, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)


# What is declared


def test_every_case_has_every_seed_and_all_else_alike() -> None:
    declared = [one for one in runs.declared("all") if not str(one.run_name).startswith(runs.TIMELINE)]
    assert len({one.run_name for one in declared}) == len(declared)
    seeds: dict[str, list[int]] = {}
    for one in declared:
        seeds.setdefault(str(one.run_name).rpartition("-s")[0], []).append(one.seed)
        assert (one.lr, one.momentum, one.optimizer, one.dataset) == (0.02, 0.9, "sgd", "fashion_mnist")
        assert one.builtin is None or one.builtin.name == one.strategy
    assert all(found == list(runs.SEEDS) for found in seeds.values())
    assert {one.strategy for one in declared} == {*STRATEGIES, *runs.BUILTIN}
    every = {one.run_name for name in runs.EXPERIMENTS for one in runs.declared(name)}
    assert every == {one.run_name for one in runs.declared("all")}


def plan_of(case: dict[str, Any]) -> Any:
    (options,) = (
        one
        for one in runs.declared("all")
        if one.seed == 0
        and not str(one.run_name).startswith(runs.TIMELINE)
        and one.model == runs.MODELS[case["model"]]
        and all(getattr(one, name) == case[name] for name in collect.CASE if name != "model")
    )
    return options.resolve().plan(options.train_size or 60_000)


def test_both_sides_of_a_comparison_have_the_same_workers_and_batches() -> None:
    pairs = [(*cases.SERVER[model],) for model in cases.SERVER]
    pairs += [(cases.RING["cnn"][i], cases.RING["cnn"][i + 1]) for i in (0, 2)] + [(*cases.RING["mlp"],)]
    for ours, built_in in pairs:
        assert plan_of(ours) == plan_of(built_in)
    for n in (2, 4):
        assert plan_of(plots.strong("ring_all_reduce", n)).global_batch_size == runs.BATCH
        weak = plan_of(plots.weak("param_server", n))
        assert weak.global_batch_size == weak.workers * runs.BATCH // 2


def test_a_run_counts_as_done_only_if_it_measured_the_same(tmp_path: Path) -> None:
    one = runs.declared("ring_all_reduce")[0]
    recorded = {name: getattr(one, name) for name in Options.__dataclass_fields__ if name != "builtin"}
    assert runs.same_run(one, recorded | {"data_dir": "elsewhere", "timeout": 5.0})
    for change in ({"lr": 0.1}, {"epochs": 1}, {"seed": 7}, {"model": "mlp"}, {"n_gpus": 7}):
        assert not runs.same_run(one, recorded | change)
    recorded.pop("momentum")
    assert not runs.same_run(one, recorded)


# What is run


def test_a_quick_run_end_to_end_and_its_notebook(tmp_path: Path) -> None:
    results = tmp_path / "quick"
    done = command("param_server", "--quick", "--results_dir", str(results), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    expected = runs.declared("param_server", quick=True)
    assert f"runs made      {len(expected)}" in done.stdout
    assert {path.stem for path in results.glob("*.json")} == {one.run_name for one in expected}
    assert all(load_metadata(path)["options"]["dataset"] == "digits" for path in results.glob("*.json"))

    victim = next(results.glob("mlp-*.json"))
    victim.unlink()
    again = command("param_server", "--quick", "--results_dir", str(results), "--device", "cpu")
    assert again.returncode == 0, again.stderr
    assert "runs made      1\n" in again.stdout
    assert victim.exists()

    table = cases.table(collect.load(results), cases.SERVER["mlp"])
    assert [row[1] for row in table[1:]] == ["parameter server", "DataParallel (built-in)"]
    report.execute(next(path for path in report.NOTEBOOKS if "server" in path.name), results)


def test_a_failed_run_is_reported_and_the_rest_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def fails_once(options: Options, quiet: bool) -> None:
        tried.append(options.run_name)
        if len(tried) == 2:
            raise RunFailed("rank 1 (worker) was killed by SIGKILL")

    monkeypatch.setattr(run, "run", fails_once)
    with pytest.raises(RunFailed, match="^1 of") as failed:
        run.main(run.Settings("scaling", quick=True, results_dir=str(tmp_path), device="cpu"))
    expected = [one.run_name for one in runs.declared("scaling", quick=True)]
    assert tried == expected
    assert str(failed.value).endswith(str(expected[1]))
    said = capsys.readouterr()
    assert f"failed: {expected[1]}: RunFailed: rank 1 (worker) was killed by SIGKILL" in said.err
    assert f"runs made      {len(expected) - 1}" in said.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["everything"], "param_server"),
        ([], "experiment"),
        (["all", "--quik"], "did you mean --quick?"),
        (["all", "--data_dir", "/nowhere"], "--download"),
        (["all", "--quick", "--results_dir", "/dev/null/x"], "--results_dir"),
        (["all", "--quick", "--device", "tpu"], "--device"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], expected: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


# What is shown


def test_the_committed_results_are_those_of_the_declared_runs() -> None:
    declared = {one.run_name: one for one in runs.declared("all")}
    found = {path.stem: load_metadata(path) for path in KEPT.glob("*.json")}
    assert set(found) == set(declared)
    for name, metadata in found.items():
        assert runs.same_run(declared[name], metadata["options"])
        assert metadata["replicas_identical"] or metadata["strategy"] == "none"
        assert not metadata["git_commit"].endswith("-dirty")
    assert len({json.dumps(metadata["machine"]) for metadata in found.values()}) == 1


def test_the_cnn_passes_88_percent_with_every_strategy_that_communicates() -> None:
    results = collect.load(KEPT)
    runs_on_all = collect.pick(results.runs, model="cnn", train_size=0, global_batch_size=runs.BATCH)
    assert (runs_on_all.loc[runs_on_all["strategy"] != "none", "accuracy"] > 0.88).all()


@pytest.mark.parametrize("notebook", report.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_the_committed_results(notebook: Path) -> None:
    def printed(node: nbformat.NotebookNode) -> list[str]:
        outputs = [output for cell in node.cells if cell.cell_type == "code" for output in cell.outputs]
        return ["".join(output["text"]) for output in outputs if output["output_type"] == "stream"]

    def pictures(node: nbformat.NotebookNode) -> int:
        outputs = [output for cell in node.cells if cell.cell_type == "code" for output in cell.outputs]
        return sum("image/png" in output.get("data", {}) for output in outputs)

    saved = nbformat.read(notebook, as_version=4)
    executed = report.execute(notebook, KEPT)
    assert printed(executed) == printed(saved), "python experiments/report.py brings the notebooks up to date"
    assert pictures(executed) == pictures(saved) >= 4


def test_the_readme_shows_the_committed_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert report.with_table(readme, collect.load(KEPT)) == readme, "python experiments/report.py brings it up to date"


def test_the_pictures_of_the_readme_exist_and_are_small() -> None:
    for name in (*(f"{name}.png" for name in cases.FIGURES), "timelines.png"):
        assert (ROOT / "media" / name).read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "media" / "ring_all_reduce.gif").stat().st_size < 1.5e6


# How it is computed


def test_what_is_collected_from_one_run(tmp_path: Path) -> None:
    name = "cnn-param_server-4-b128-all-s1"
    for suffix in (".csv", ".json"):
        shutil.copy(KEPT / f"{name}{suffix}", tmp_path)
    results = collect.load(tmp_path)
    table = pd.read_csv(tmp_path / f"{name}.csv")
    (one,) = results.runs.to_dict("records")
    assert (one["strategy"], one["n_gpus"], one["workers"], one["seed"], one["samples"]) == (
        "param_server",
        4,
        3,
        1,
        60_000,
    )
    slowest = table.groupby("epoch")["epoch_s"].max()
    assert one["epoch_s"] == pytest.approx(slowest[1:].mean())
    assert one["mb_per_step"] == pytest.approx(table["bytes_sent"].sum() / table["step"].max() / 1e6)
    assert results.epochs["seconds"].tolist() == pytest.approx(slowest.cumsum().tolist())
    assert results.epochs["accuracy"].tolist() == table["test_accuracy"].dropna().tolist()
    assert results.traffic["mb_sent"].sum() == pytest.approx(one["mb_per_step"])
    third = results.epochs["accuracy"].iloc[2]
    first = int((results.epochs["accuracy"] >= third).to_numpy().argmax())
    assert collect.seconds_to(results, third)["seconds"].tolist() == [results.epochs["seconds"].iloc[first]]
    assert collect.seconds_to(results, 0.999)["seconds"].isna().all()


def test_spread_is_the_mean_and_half_the_range() -> None:
    assert collect.spread([1.0, 2.0, 6.0], 1) == "3.0 ± 2.5"
    assert collect.spread([0.5], 0, 100) == "50 ± 0"
    assert collect.spread([], 1) == collect.spread([float("nan")], 1) == "-"


def test_a_ratio_is_taken_seed_by_seed() -> None:
    runs_of = {"a": {0: 10.0, 1: 30.0}, "b": {0: 5.0, 1: 10.0, 2: 1.0}}
    rows = [{"strategy": s, "seed": k, "samples_per_s": v} for s, rates in runs_of.items() for k, v in rates.items()]
    results = collect.Results(pd.DataFrame(rows), pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), {})
    assert collect.ratio_to(results, {"strategy": "a"}, {"strategy": "b"}).to_dict() == {0: 2.0, 1: 3.0}
