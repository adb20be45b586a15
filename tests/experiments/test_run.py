"""Making the results: what is there is skipped, failures are told, interruptions tear nothing."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import report, run, runs
from experiments.run import WORK
from experiments.store import Store
from records.errors import RunFailed, UsageError
from records.machine import machine
from tests.experiments import samples
from tests.ranks import LIMIT, wait_until
from training import Options

ROOT = Path(__file__).parent.parent.parent
DECLARED = runs.declared("scaling", quick=True)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "experiments/run.py", *arguments]
    return subprocess.run(python, cwd=ROOT, capture_output=True, text=True, timeout=10 * LIMIT, check=False)


def counts(output: str) -> list[int]:
    """Return how many runs were made, were there already, and failed, as printed at the end."""
    return [int(line.split()[-1]) for line in output.splitlines()[:3]]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that only write made-up records, in no time; returns the names of those that were tried."""
    names: list[str] = []

    def write(options: Options, quiet: bool) -> None:
        names.append(str(options.run_name))
        folder = Path(options.results_dir)
        folder.mkdir()
        samples.epochs_of(options).to_csv(folder / f"{options.run_name}.csv", index=False)
        record = json.dumps(samples.metadata_of(options, machine=machine()))
        (folder / f"{options.run_name}.json").write_text(record)

    monkeypatch.setattr(run, "run", write)
    return names


def settings(folder: Path, experiment: str = "scaling") -> run.Settings:
    return run.Settings(experiment, quick=True, results_dir=str(folder), device="cpu")  # type: ignore[arg-type]


def test_what_is_there_is_not_made_again(tmp_path: Path, tried: list[str]) -> None:
    run.main(settings(tmp_path))
    assert tried == [one.run_name for one in DECLARED]
    assert not (tmp_path / WORK).exists()
    tried.clear()
    run.main(settings(tmp_path))
    assert tried == []
    store = Store.load(tmp_path, "scaling")
    store.metadata.pop(str(DECLARED[3].run_name))
    samples.keep(store, DECLARED[0], machine=machine())
    run.main(settings(tmp_path))
    assert tried == [DECLARED[3].run_name]


def test_a_run_that_two_experiments_share_is_made_once(tmp_path: Path, tried: list[str]) -> None:
    run.main(settings(tmp_path))
    tried.clear()
    shared = "cnn-param_server-3-b128-all-s0-quick"
    (tmp_path / "timeline-param_server-3-quick.events.csv.gz").touch()
    with pytest.raises(RunFailed, match=r"timeline-param_server-3-quick$"):  # no events were written
        run.main(settings(tmp_path, "param_server"))
    assert shared not in tried
    of_both = [Store.load(tmp_path, name).rows(shared).reset_index(drop=True) for name in ("param_server", "scaling")]
    assert of_both[0].equals(of_both[1])


def test_a_failed_run_is_reported_and_the_others_are_made(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = run.run

    def fails_once(options: Options, quiet: bool) -> None:
        if len(tried) == 1:
            tried.append(str(options.run_name))
            raise RunFailed("rank 1 (worker) was killed by SIGKILL")
        good(options, quiet)

    monkeypatch.setattr(run, "run", fails_once)
    with pytest.raises(RunFailed, match=r"^1 of") as failed:
        run.main(settings(tmp_path))
    expected = [str(one.run_name) for one in DECLARED]
    assert tried == expected
    assert str(failed.value).endswith(expected[1])
    said = capsys.readouterr()
    assert f"failed: {expected[1]}: rank 1 (worker) was killed by SIGKILL" in said.err
    assert counts(said.out) == [len(expected) - 1, 0, 1]
    assert set(Store.load(tmp_path, "scaling").metadata) == set(expected) - {expected[1]}


def test_a_rate_of_the_grid_that_diverges_is_a_result_and_any_other_failure_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(options: Options, quiet: bool) -> None:
        if options.lr == 0.2:
            raise RunFailed("the loss became nan in epoch 1, step 3 of 8; take a smaller --lr, or bound the gradient")
        raise RunFailed("rank 1 (worker) was killed by SIGKILL")

    monkeypatch.setattr(run, "run", fails)
    monkeypatch.setattr(run.lost_updates, "record", lambda path: path.touch())
    with pytest.raises(RunFailed):
        run.main(settings(tmp_path, "server_family"))
    grid = run.family_runs.tuning(quick=True)
    diverged = {str(one.run_name) for one in grid if one.lr == 0.2}
    assert set(Store.load(tmp_path, "server_family").metadata) == diverged
    assert counts(capsys.readouterr().out) == [len(diverged) + 1, 0, len(grid) + 1 - len(diverged)]


def test_results_of_another_machine_are_not_mixed_with_those_of_this(tmp_path: Path, tried: list[str]) -> None:
    samples.keep(Store.load(tmp_path, "scaling"), DECLARED[0])
    with pytest.raises(UsageError, match=r"was measured with another .*cpu.*; name another folder"):
        run.main(settings(tmp_path))
    assert tried == []


def test_what_a_killed_command_left_is_removed(tmp_path: Path, tried: list[str]) -> None:
    (tmp_path / WORK).mkdir()
    (tmp_path / WORK / f"{DECLARED[0].run_name}.csv").touch()
    run.main(settings(tmp_path))
    assert len(tried) == len(DECLARED)
    assert not list(tmp_path.glob(".*"))


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
        raise RunFailed("ended")

    monkeypatch.setattr(run, "run", is_run)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        run.main(settings(tmp_path))
    assert interrupt.value.args == (signal.SIGTERM,)
    assert len(tried) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_finished_and_tears_nothing(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["scaling", "--quick", "--results_dir", str(tmp_path), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "experiments/run.py", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    reached = wait_until((tmp_path / "scaling.json").exists, LIMIT)
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT)
    assert reached
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] == f"error: ended by {number.name}; {run.KEPT}"
    assert "Traceback" not in said
    assert not list(tmp_path.glob(".*"))
    store = Store.load(tmp_path, "scaling")
    (name, *_) = store.metadata
    assert store.has(replace(next(one for one in DECLARED if one.run_name == name), device="cpu"))


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.timeout(20 * LIMIT)
def test_a_quick_run_end_to_end_and_its_notebook(tmp_path: Path) -> None:
    arguments = ("ring_all_reduce", "--quick", "--results_dir", str(tmp_path), "--device", "cpu")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    expected = {str(one.run_name): one for one in runs.declared("ring_all_reduce", quick=True)}
    assert counts(done.stdout) == [len(expected) + 1, 0, 0]  # and the ring that is drawn
    store = Store.load(tmp_path, "ring_all_reduce")
    assert set(store.metadata) == set(expected)
    assert all(store.has(replace(one, device="cpu")) for one in expected.values())
    learned = [entry["test_accuracy"] for name, entry in store.metadata.items() if name.startswith("cnn")]
    assert min(learned) > 0.6, "a quick run teaches something"
    report.execute(next(path for path in report.NOTEBOOKS if "ring" in path.name), tmp_path)


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
@pytest.mark.slow
def test_bad_input_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run.guarded(lambda: run.main(run.parse(arguments, run.Settings, run.__doc__ or "")), run.KEPT)
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert expected in said


def test_quick_results_are_for_notebooks_not_for_reports(tmp_path: Path, tried: list[str]) -> None:
    with pytest.raises(RunFailed):  # the timeline has no events
        run.main(settings(tmp_path, "param_server"))
    with pytest.raises(UsageError, match="EXPERIMENT_RESULTS"):
        report.complete(tmp_path)
