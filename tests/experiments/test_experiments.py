"""The experiments: fair as declared, run as declared; the notebooks and the README show the committed results."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest

from benchmarks import networks
from experiments import cases, collect, family, family_plots, family_runs, plots, recorded, report, run, runs
from experiments.runs import Case
from records.errors import RunFailed, UsageError
from records.files import TRACE_SUFFIX, load_metadata
from strategies import STRATEGIES, Strategy
from strategies.async_param_server import AsyncParamServer
from strategies.backup_workers import BackupWorkers
from strategies.downpour import Downpour
from strategies.inconsistent_reads import InconsistentReads
from strategies.param_server import ParamServer
from tests.ranks import LIMIT, wait_until
from training import Options
from training.checks import resolve
from workloads import models

ROOT = Path(__file__).parent.parent.parent
KEPT = collect.KEPT
SHOWN = [
    *cases.TABLE, *cases.STRONG, *cases.WEAK, *cases.STRONG_2, *cases.SERVERS, *cases.TRAFFIC,
    *(case for pair in (*cases.SERVER.values(), *cases.RING.values()) for case in pair),
]  # fmt: skip


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "experiments/run.py", *arguments]
    return subprocess.run(python, cwd=ROOT, capture_output=True, text=True, timeout=10 * LIMIT, check=False)


def counts(output: str) -> list[int]:
    """Return how many runs were made, were there already, and failed, as printed at the end."""
    return [int(line.split()[-1]) for line in output.splitlines()[:3]]


def declared(experiment: str = "all", quick: bool = False) -> dict[str, Options]:
    return {str(one.run_name): one for one in runs.declared(experiment, quick)}


# What is declared


def test_every_case_has_every_seed_and_all_else_alike() -> None:
    seeds: dict[str, list[int]] = {}
    for name, one in declared().items():
        assert (one.lr, one.momentum, one.optimizer, one.dataset) == (0.02, 0.9, "sgd", "fashion_mnist")
        assert one.strategy.name in (*runs.BUILTIN, *STRATEGIES)
        if not name.startswith(runs.TIMELINE):
            seeds.setdefault(name.rpartition("-s")[0], []).append(one.seed)
    assert all(found == list(runs.SEEDS) for found in seeds.values())
    assert {name for experiment in runs.EXPERIMENTS for name in declared(experiment)} == set(declared())
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


# What is run


def test_a_run_counts_as_done_only_if_it_measured_the_same() -> None:
    one = runs.declared("ring_all_reduce")[0]
    written = json.loads(json.dumps(one.recorded()))
    assert recorded.same_run(one, written | {"data_dir": "elsewhere", "timeout": 5.0, "run_name": "x"})
    for change in ({"lr": 0.1}, {"epochs": 1}, {"seed": 7}, {"model": "mlp"}, {"n_gpus": 7}, {"device": "cuda"}):
        assert not recorded.same_run(one, written | change)
    for strategy in ("naive_all_reduce", "unknown"):
        assert not recorded.same_run(one, written | {"strategy": strategy})
    assert not recorded.same_run(one, {name: value for name, value in written.items() if name != "lr"})


def test_options_that_came_later_count_as_their_defaults() -> None:
    one = replace(runs.declared("ring_all_reduce")[0], momentum=0.0, strategy=Downpour(n_push=4))
    written = one.recorded() | {"no_option_today": 7}
    for missing in ("jitter", "warmup", "n_fetch"):
        older = {name: value for name, value in written.items() if name != missing}
        assert recorded.same_run(one, older)
    assert not recorded.same_run(replace(one, strategy=Downpour(n_push=4, n_fetch=2)), older)
    assert recorded.same_run(one, {name: value for name, value in written.items() if name != "momentum"}), "0"
    assert not recorded.same_run(one, {name: value for name, value in written.items() if name != "n_push"})


@pytest.mark.parametrize(
    ("former", "strategy"),
    [
        ({"strategy": "param_server"}, ParamServer()),
        ({"strategy": "param_server", "backup_workers": 1}, BackupWorkers(n_backup=1)),
        ({"strategy": "async_param_server", "max_staleness": 2}, AsyncParamServer(max_staleness=2)),
        ({"strategy": "async_param_server", "reads": "inconsistent"}, InconsistentReads()),
        ({"strategy": "downpour", "n_push": 4, "n_pull": 2}, Downpour(n_push=4, n_fetch=2)),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_options_are_read_under_their_former_names(former: dict[str, Any], strategy: Strategy) -> None:
    servers = {"backup_workers": 0, "max_staleness": None, "aggregate": 1, "reads": "consistent", "n_push": 1}
    options = Options(strategy=strategy, momentum=0.0, n_gpus=4)
    of_run = {name: value for name, value in options.recorded().items() if hasattr(options, name)}
    written = of_run | servers | {"n_pull": 1, "workers_like": 1} | former
    assert recorded.same_run(options, written)
    assert recorded.in_todays_names(recorded.in_todays_names(written)) == recorded.in_todays_names(written)
    for other in (ParamServer(), BackupWorkers(n_backup=2), AsyncParamServer(), Downpour(n_push=4)):
        if other != strategy:
            assert not recorded.same_run(replace(options, strategy=other), written)


def test_a_strategy_that_is_new_has_a_name_and_a_colour() -> None:
    new = [name for name in STRATEGIES if name not in plots.NAMES]
    assert plots.name_of("ring_all_reduce") == "ring all-reduce"
    assert plots.name_of("some_new_server") == "some new server"
    assert plots.name_of("mine.servers:My_Server") == "My Server"
    assert len({plots.colour_of(name) for name in (*plots.COLOURS, *new)}) == len(plots.COLOURS) + len(new)
    assert plots.colour_of("mine.servers:My_Server") == plots.colour_of("mine.servers:My_Server")
    assert plots.title(Case("inconsistent_reads", 4)) == "inconsistent reads, 4 ranks"


def copied(tmp_path: Path, name: str, **changes: Any) -> Path:
    """Copy a committed run, with changes of its metadata; return the path of that."""
    shutil.copy(KEPT / f"{name}.csv", tmp_path)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(load_metadata(KEPT / path.name) | changes))
    return path


RING = "cnn-ring_all_reduce-2-b128-all-s{}"


def test_only_a_whole_good_run_is_done(tmp_path: Path) -> None:
    name = RING.format(0)
    one = replace(declared()[name], results_dir=str(tmp_path), device="cpu")
    assert not recorded.is_there(one)
    copied(tmp_path, name)
    assert recorded.is_there(one)
    assert not recorded.is_there(replace(one, lr=0.5))
    copied(tmp_path, name, replicas_identical=False)
    assert not recorded.is_there(one)
    path = copied(tmp_path, name)
    for text in ("", "{", "[1]", '{"strategy": "x", "n_gpus": 2, "replicas_identical": true, "options": [1]}'):
        path.write_text(text)
        assert not recorded.is_there(one)
    table = copied(tmp_path, name).with_suffix(".csv")
    for text in ("", table.read_text()[:700], "".join(table.read_text().splitlines(keepends=True)[:5])):
        table.write_text(text)
        assert not recorded.is_there(one)


@pytest.mark.slow
@pytest.mark.timeout(20 * LIMIT)
def test_a_quick_run_end_to_end_and_its_notebook(tmp_path: Path) -> None:
    results = tmp_path / "quick"
    arguments = ("ring_all_reduce", "--quick", "--results_dir", str(results), "--device", "cpu")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    expected = declared("ring_all_reduce", quick=True)
    assert counts(done.stdout) == [len(expected) + 1, 0, 0]  # and the ring that is drawn
    assert {path.stem for path in results.glob("*.json")} == set(expected)
    assert all(load_metadata(path)["options"]["dataset"] == "digits" for path in results.glob("*.json"))

    victim = next(results.glob("mlp-*.json"))
    victim.unlink()
    again = command(*arguments)
    assert again.returncode == 0, again.stderr
    assert counts(again.stdout) == [1, len(expected) - 1, 0]
    assert victim.exists()

    report.execute(next(path for path in report.NOTEBOOKS if "ring" in path.name), results)
    with pytest.raises(UsageError, match="EXPERIMENT_RESULTS"):
        report.complete(results)
    with pytest.raises(UsageError, match=r"runs are missing or damaged, such as .*make them"):
        report.complete(tmp_path / "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_finished_and_tears_nothing(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["scaling", "--quick", "--results_dir", str(tmp_path), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "experiments/run.py", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    reached = wait_until(lambda: len(list(tmp_path.glob("[!.]*.json"))) >= 2, LIMIT)
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT)
    assert reached
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] == f"error: ended by {number.name}; {run.KEPT}"
    assert "Traceback" not in said
    assert not list(tmp_path.glob(".*"))
    for path in tmp_path.glob("*.json"):
        assert path.with_suffix(".csv").exists()
        assert load_metadata(path)["options"]["dataset"] == "digits"


def test_an_interrupt_that_comes_in_a_destructor_ends_the_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bar:
        def __del__(self) -> None:
            raise KeyboardInterrupt(signal.SIGTERM)

    tried = []

    def is_run(options: Options, quiet: bool) -> None:
        tried.append(options.run_name)
        Bar()

    monkeypatch.setattr(run, "run", is_run)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        run.main(run.Settings("scaling", quick=True, results_dir=str(tmp_path), device="cpu"))
    assert interrupt.value.args == (signal.SIGTERM,)
    assert len(tried) == 1


def test_a_failed_run_is_reported_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def fails_once(options: Options, quiet: bool) -> None:
        tried.append(options.run_name)
        if len(tried) == 2:
            raise RunFailed("rank 1 (worker) was killed by SIGKILL")

    monkeypatch.setattr(run, "run", fails_once)
    with pytest.raises(RunFailed, match=r"^1 of") as failed:
        run.main(run.Settings("scaling", quick=True, results_dir=str(tmp_path), device="cpu"))
    expected = list(declared("scaling", quick=True))
    assert tried == expected
    assert str(failed.value).endswith(expected[1])
    said = capsys.readouterr()
    assert f"failed: {expected[1]}: rank 1 (worker) was killed by SIGKILL" in said.err
    assert counts(said.out) == [len(expected) - 1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["everything"], "param_server"),
        ([], "experiment"),
        (["all", "--quik"], "did you mean --quick?"),
        (["all", "--data_dir", "/nowhere"], "--download"),
        (["all", "--quick", "--results_dir", "/dev/null/x"], "--results_dir"),
        (["all", "--quick", "--device", "tpu"], "--device"),
        (["all", "--quick", "--results_dir", ""], "--results_dir: is empty"),
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
    found = {path.stem: path for path in KEPT.glob("[!.]*.json") if not path.name.endswith(TRACE_SUFFIX)}
    assert set(found) == set(declared())
    for name, path in found.items():
        metadata = load_metadata(path)
        assert recorded.same_run(replace(declared()[name], device="cpu"), metadata["options"])
        assert metadata["replicas_identical"] or metadata["strategy"] == "none"
        assert not metadata["git_commit"].endswith("-dirty")
    assert len({json.dumps(load_metadata(path)["machine"]) for path in found.values()}) == 1


def test_the_cnn_passes_88_percent_with_every_strategy_that_communicates() -> None:
    table = collect.load(KEPT).runs.query("model == 'cnn' and train_size == 0 and global_batch_size == @runs.BATCH")
    communicating = table[table["strategy"] != "none"]
    assert set(communicating["strategy"]) == {one.strategy.name for one in declared().values()} - {"none"}
    assert (communicating["accuracy"] > 0.88).all()


@pytest.mark.slow
@pytest.mark.parametrize("notebook", report.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_the_committed_results(notebook: Path) -> None:
    def outputs(node: nbformat.NotebookNode) -> list[Any]:
        return [output for cell in node.cells if cell.cell_type == "code" for output in cell.outputs]

    def printed(node: nbformat.NotebookNode) -> list[str]:
        return ["".join(output["text"]) for output in outputs(node) if output["output_type"] == "stream"]

    def pictures(node: nbformat.NotebookNode) -> int:
        return sum("image/png" in output.get("data", {}) for output in outputs(node))

    saved, executed = nbformat.read(notebook, as_version=4), report.execute(notebook, KEPT)
    assert printed(executed) == printed(saved), "python experiments/report.py brings the notebooks up to date"
    assert pictures(executed) == pictures(saved) >= 4


def test_the_readme_shows_the_committed_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert report.with_table(readme, report.complete(KEPT)) == readme, "python experiments/report.py does so"


@pytest.mark.slow
def test_the_pictures_are_drawn_and_those_of_the_readme_exist(tmp_path: Path) -> None:
    results = collect.load(KEPT)
    figures = {name: draw(results) for name, draw in cases.FIGURES.items()} | {"timelines": cases.timelines(KEPT)}
    figures[family_runs.FAMILY] = family_plots.summary(family.load(KEPT))
    for name, figure in figures.items():
        figure.savefig(tmp_path / "figure.png")
        for path in (tmp_path / "figure.png", ROOT / "media" / f"{name}.png"):
            assert path.read_bytes().startswith(b"\x89PNG")
            assert path.stat().st_size > 10_000
    assert (ROOT / "media" / "ring_all_reduce.gif").stat().st_size < 1.5e6


# How it is computed


def test_what_is_collected_from_one_run(tmp_path: Path) -> None:
    name = "cnn-param_server-4-b128-all-s1"
    copied(tmp_path, name)
    (tmp_path / ".1.torn.json").write_text("{")
    (tmp_path / "x.trace.json").write_text("{}")
    results = collect.load(tmp_path)
    table = pd.read_csv(tmp_path / f"{name}.csv")
    (one,) = results.runs.to_dict("records")
    assert (one["strategy"], one["n_gpus"], one["workers"], one["seed"]) == ("param_server", 4, 3, 1)
    assert (one["samples"], one["counted"]) == (60_000, True)
    slowest = table.groupby("epoch")["epoch_s"].max()
    assert one["epoch_s"] == pytest.approx(slowest[1:].mean())
    assert one["mb_per_step"] == pytest.approx(table["bytes_sent"].sum() / table["step"].max() / 1e6)
    assert results.epochs["seconds"].tolist() == pytest.approx(slowest.cumsum().tolist())
    assert results.epochs["accuracy"].tolist() == table["test_accuracy"].dropna().tolist()
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
    copied(tmp_path, RING.format(0))
    other = RING.format(1)
    options = load_metadata(KEPT / f"{other}.json")["options"]
    machine = load_metadata(KEPT / f"{other}.json")["machine"]
    for changes in ({"options": options | {"lr": 0.5}}, {"machine": machine | {"torch": "3.0"}}):
        copied(tmp_path, other, **changes)
        with pytest.raises(UsageError, match="were not made alike"):
            collect.load(tmp_path)
    copied(tmp_path, other)
    assert len(collect.load(tmp_path).runs) == 2


def test_what_is_not_a_whole_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"python experiments/run\.py"):
        collect.load(tmp_path)
    path = copied(tmp_path, RING.format(0))
    table, metadata = path.with_suffix(".csv"), path.read_text()
    whole = table.read_text()
    other = (KEPT / "cnn-single-1-b128-all-s0.csv").read_text()
    first_rows = "".join(whole.splitlines(keepends=True)[:5])
    bad_tables = ["", whole[:700], whole.splitlines()[0] + "\n", first_rows, "a,b\n1,2\n", other]
    bad_metadata = ["", metadata[:300], "{}", "[1]", metadata.replace(RING.format(0), "another name")]
    for file, texts in ((table, bad_tables), (path, bad_metadata)):
        right = file.read_text()
        for text in texts:
            file.write_text(text)
            with pytest.raises(UsageError, match="delete it and make it again") as error:
                collect.load(tmp_path)
            assert "\n" not in str(error.value)
        file.write_text(right)
    assert len(collect.load(tmp_path).runs) == 1


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
