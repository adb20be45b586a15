"""Making the results: what is there is skipped, failures are reported, interruptions and damage tear nothing."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from experiments import grid, lost_updates, measured, real, report, run, simulated
from experiments.cases import FAMILY, LOST_UPDATES, TIMELINES, Comparison, Family
from experiments.measured import CLUSTER, EXPERIMENTS, WHOLE
from experiments.real import Runs as Kept
from experiments.simulated import Case, Rows, Simulated
from experiments.virtual_cases import CODED, METHODS
from gradwire import Options
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from tests.experiments import samples
from tests.ranks import LIMIT, wait_until
from tests.runs import ROOT

DECLARED = Comparison("scaling", quick=True).finals(None)


def counts(output: str) -> list[int]:
    """Return how many runs were made, were there already, and failed, as printed at the end."""
    lines = output.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("runs made"))
    return [int(line.split()[-1]) for line in lines[first : first + 3]]


class Runs(list[str]):
    """The names of the runs that were tried; each is made in no time, its records made up, unless `fails` raises."""

    fails: Callable[[Options], object] = staticmethod(lambda options: None)

    def __call__(self, options: Options, quiet: bool) -> None:
        self.append(str(options.run_name))
        self.fails(options)
        path = Path(options.results_dir) / str(options.run_name)
        samples.epochs_of(options).to_csv(f"{path}.csv", index=False)
        Path(f"{path}.json").write_text(json.dumps(samples.metadata_of(options)))
        Path(f"{path}.events.csv.gz").touch()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(real, "run", runs := Runs())
    return runs


def settings(folder: Path, experiment: str = "scaling") -> run.Settings:
    return run.Settings(experiment, quick=True, results_dir=str(folder), device="cpu")


def test_what_is_there_is_not_made_again_not_for_another_experiment_either(tmp_path: Path, tried: Runs) -> None:
    run.main(settings(tmp_path))
    assert tried == [run.run_name for run in DECLARED]
    assert not list(tmp_path.glob(".*"))
    kept = Kept(tmp_path, "scaling")
    kept.runs.pop(str(DECLARED[3].run_name))
    samples.keep(kept, DECLARED[0])
    tried.clear()
    run.main(settings(tmp_path))
    assert tried == [DECLARED[3].run_name]
    run.main(settings(tmp_path, "param_server"))
    shared, drawn = "cnn-param_server-3-b128-all-s0-quick", f"timeline-param_server-{TIMELINES['param_server']}-quick"
    assert shared not in tried
    assert tried[-1] == drawn
    assert (tmp_path / f"{drawn}.events.csv.gz").exists()
    both = [Kept(tmp_path, name).rows(shared).reset_index(drop=True) for name in ("param_server", "scaling")]
    assert both[0].equals(both[1])
    with pytest.raises(UsageError, match="EXPERIMENT_RESULTS"):
        report.complete(tmp_path)  # quick results are for notebooks


def test_a_failed_run_is_reported_and_the_others_are_made(
    tmp_path: Path, tried: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(run.run_name) for run in DECLARED]

    def fail(options: Options) -> None:
        if options.run_name == names[1]:
            raise RunFailed("rank 1 (worker) was killed by SIGKILL")

    tried.fails = fail
    with pytest.raises(RunFailed, match=rf"^1 of .*{names[1]}$"):
        run.main(settings(tmp_path))
    assert tried == names
    said = capsys.readouterr()
    assert f"failed: {names[1]}: rank 1 (worker) was killed by SIGKILL" in said.err
    assert counts(said.out) == [len(names) - 1, 0, 1]
    assert set(Kept(tmp_path, "scaling").runs) == set(names) - {names[1]}


def test_a_rate_of_the_grid_that_diverges_is_a_result_and_any_other_failure_is_none(
    tmp_path: Path, tried: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: Options) -> None:
        raise RunFailed("the loss became nan; take a smaller --lr" if options.lr == 0.2 else "rank 1 was killed")

    tried.fails = fail
    monkeypatch.setattr(Family, "files", {LOST_UPDATES: lambda path: path.touch()})
    with pytest.raises(RunFailed):
        run.main(settings(tmp_path, FAMILY))
    grid = Family(FAMILY, quick=True).grid()
    diverged = {str(case.run_name) for case in grid if case.lr == 0.2}
    assert set(Kept(tmp_path, FAMILY).runs) == diverged
    assert counts(capsys.readouterr().out) == [len(diverged) + 1, 0, len(grid) - len(diverged)]


def test_results_of_another_machine_are_not_mixed_with_those_of_this(tmp_path: Path, tried: Runs) -> None:
    samples.keep(Kept(tmp_path, "scaling"), DECLARED[0])
    with pytest.raises(UsageError, match=r"was measured with another .*cpu.*; name another --results_dir"):
        run.main(settings(tmp_path))
    assert tried == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["everything"], "param_server"),
        ([], "give EXPERIMENT"),
        (["all", "--quik"], "did you mean --quick?"),
        (["all", "--data_dir", "/nowhere"], "--download"),
        (["all", "--quick", "--results_dir", "/dev/null/x"], "--results_dir"),
        (["all", "--quick", "--device", "tpu"], "--device"),
        (["all", "--quick", "--results_dir", ""], "--results_dir: is empty"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run.run_command(lambda: run.main(run.parse(arguments, run.Settings, run.__doc__ or "")), grid.FINISHED)
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert expected in said


# In virtual time


def test_runs_in_virtual_time_continue_where_they_were_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Case] = []
    broken: list[type[BaseException]] = [RunFailed, KeyboardInterrupt]

    def rows(self: Simulated, case: Case, common: dict[str, Any], timed: Any) -> Any:
        if len(made) == 7 and broken:
            raise broken.pop()("once")
        made.append(case)
        return samples.rows_of(case, 1)

    in_this_process = nullcontext(SimpleNamespace(map=map))
    monkeypatch.setattr(simulated, "ProcessPoolExecutor", lambda *_: in_this_process)
    monkeypatch.setattr(Simulated, "rows", rows)
    experiment = measured.of_size(quick=True)[CLUSTER]
    with pytest.raises(KeyboardInterrupt):
        run.main(settings(tmp_path, CLUSTER))
    assert Rows(tmp_path, CLUSTER).cases == set(made)
    with pytest.raises(RunFailed, match="1 of"):
        run.main(settings(tmp_path, CLUSTER))
    assert len(experiment.missing(tmp_path)) == 1, "the grid lacks one, and so the rest is not made"
    n = len(made)
    capsys.readouterr()
    run.main(settings(tmp_path, CLUSTER))
    assert len(made) == len(set(made))
    assert experiment.missing(tmp_path) == []
    assert counts(capsys.readouterr().out) == [len(made) - n, n, 0]
    with pytest.raises(UsageError, match="of another size; delete it, or name another --results_dir"):
        EXPERIMENTS[CLUSTER].missing(tmp_path)


@pytest.mark.parametrize(("name", "decodings"), [("topk", 2), ("DGS", 1)])  # on a ring the other rank's too
def test_coding_takes_its_time_and_changes_no_bit(name: str, decodings: int) -> None:
    experiment = samples.SIMULATED[CODED if name == "topk" else METHODS]
    common = {"data_dir": "data", **experiment.sizes[True]}
    step = {"forward": 0.001, "backward": 0.002}
    timed = {"step": step, name: {"encode": 0.003, "decode": 0.001}}
    (row,) = experiment.rows(Case("final", name, 2, 0.01, 1), common, timed).to_dict("records")
    assert row["coded"] / row["steps"] == pytest.approx(0.003 + 0.001 * decodings, rel=0.15)
    (free,) = experiment.rows(Case("final", name, 2, 0.01, 1, gbit=0.1), common, {"step": step}).to_dict("records")
    assert free["coded"] == 0
    if name == "topk":
        assert free["accuracy"] == row["accuracy"], "a synchronous run learns the same at every bandwidth"
        assert free["mb"] == row["mb"]


# End to end


def command(*arguments: str) -> subprocess.Popen[str]:
    python = [sys.executable, "experiments/run.py", *arguments, "--quick", "--device", "cpu"]
    return subprocess.Popen(python, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(60 * LIMIT)
@pytest.mark.parametrize(
    ("experiment", "number"),
    [
        pytest.param("ring_all_reduce", signal.SIGINT, marks=pytest.mark.end_to_end),
        pytest.param(FAMILY, signal.SIGTERM, marks=pytest.mark.exhaustive),
        *(pytest.param(name, None, marks=pytest.mark.exhaustive) for name in (CLUSTER, CODED, WHOLE)),
    ],
)
def test_a_quick_run_continues_after_an_interrupt_and_its_notebooks_show_it(
    tmp_path: Path, experiment: str, number: signal.Signals | None
) -> None:
    quick = measured.of_size(quick=True)
    declared, arguments = quick[experiment], (experiment, "--results_dir", str(tmp_path))
    there = 0
    if number:
        process = command(*arguments)
        reached = wait_until((tmp_path / f"{experiment}.json").exists, LIMIT)
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT)
        assert (reached, process.returncode) == (True, 128 + number), said
        assert grid.FINISHED in said
        assert not list(tmp_path.glob(".*.csv"))
        there = len(Kept(tmp_path, experiment).runs)
    files = sum((tmp_path / name).exists() for name in declared.files)
    process = command(*arguments)
    printed, said = process.communicate(timeout=20 * LIMIT)
    assert (process.returncode, "Traceback" in said) == (0, False), said
    made = 0
    for needed in map(quick.__getitem__, [METHODS, CODED] if experiment == CODED else [experiment]):
        made += len(needed.grid()) + len(needed.finals(needed.tuned(needed.open(tmp_path)))) + len(needed.files)
    assert counts(printed) == [made - there - files, there, 0]
    assert declared.missing(tmp_path) == []
    if experiment == "ring_all_reduce":
        kept = declared.open(tmp_path).table
        learned = kept[kept["run"].str.startswith("cnn")].groupby("run")["test_accuracy"].last()
        assert learned.min() > 0.6, "a quick run teaches something"
    for path in report.NOTEBOOKS:
        if experiment in report.experiments_of(path) and experiment != WHOLE:  # whose notebook is of 64 workers too
            report.execute(path, tmp_path)


def test_pushed_increments_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def virtual(work: Callable[..., Any], world_size: int) -> list[Any]:
        return VirtualTime(OneSwitch(world_size, 1e9, 1e-4), lambda *_: 0.0).launch(work, world_size)

    monkeypatch.setattr(lost_updates, "launch", virtual)
    monkeypatch.setattr(lost_updates, "REPEATS", 1)
    lost_updates.record(tmp_path / "lost.csv")
    for n, of in pd.read_csv(tmp_path / "lost.csv").groupby("clients"):
        kept = of.set_index("mode")["kept"]
        assert kept["push"] == n * lost_updates.UPDATES
        assert kept["write"] < kept["push"] or n == 1
        assert kept["write"] >= lost_updates.UPDATES
