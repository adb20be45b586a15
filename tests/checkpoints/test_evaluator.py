"""The evaluator beside a run: it does not outlive it, and does not harm it."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradwire import run
from gradwire.checkpoints import evaluator
from gradwire.checkpoints import folder as folder_of
from gradwire.checkpoints.evaluator import Evaluator
from tests.checkpoints.samples import evaluators, given, options, score_here, scores, start, steps
from tests.ranks import LIMIT, wait_until
from tests.runs import TRUSTED, metadata

__all__ = ["start"]


@pytest.mark.end_to_end
def test_a_killed_run_ends_its_evaluator_and_goes_on_to_the_same_end(tmp_path: Path, start: Callable[..., Any]) -> None:
    folder = tmp_path / "c"
    long = given(tmp_path, epochs=100_000, slow="0:100", checkpoint_every=10, checkpoint_keep=20, evaluator=True)
    training = start("train.py", *long)
    beside = start("evaluate.py", "--checkpoint_dir", str(folder), "--output", str(tmp_path / "beside.csv"),
                   *TRUSTED)  # fmt: skip
    assert wait_until(lambda: bool(scores(folder / "evaluation.csv") and scores(tmp_path / "beside.csv")), LIMIT)
    (attached,) = (process for process in psutil.Process(training.pid).children() if "--attached" in process.cmdline())
    training.kill()
    assert wait_until(lambda: not attached.is_running() or attached.status() == psutil.STATUS_ZOMBIE, LIMIT)
    said, errors = beside.communicate(timeout=LIMIT)
    assert (beside.returncode, errors) == (0, "")
    assert "training has ended" in said
    last = int(folder_of.listed(folder)[-1].name[5:])
    assert steps(tmp_path / "beside.csv")[-1] == last

    epochs = last // 6 + 2
    resumed = start("train.py", "--resume", str(folder), "--epochs", str(epochs), "--slow", "0:1", "--no_evaluator",
                    *TRUSTED)  # fmt: skip
    _, errors = resumed.communicate(timeout=LIMIT)
    assert resumed.returncode == 0, errors
    score_here(folder)
    found = steps(folder / "evaluation.csv")
    assert found == sorted(set(found)), "each once"
    assert found[-1] == epochs * 6 // 10 * 10
    assert not [path for path in folder.iterdir() if path.name.startswith(".step")]
    run(options(tmp_path, epochs=epochs, run_name="whole", checkpoint_every=0), quiet=True)
    assert metadata(tmp_path)["parameter_hash"] == metadata(tmp_path, "whole")["parameter_hash"]


@pytest.mark.slow
def test_an_interrupt_ends_the_evaluator_with_the_run(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: bool(evaluators()), LIMIT)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(options(tmp_path, epochs=100_000, evaluator=True), quiet=True)
    thread.join()
    assert evaluators() == []
    assert not folder_of.is_training(tmp_path / "c")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import time; time.sleep(300)", "has not scored anything for more than 1 s (--timeout)"),
        ("import sys; sys.exit('error: --output: is no table')", "failed (--output: is no table)"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit code -9"),
    ],
)
def test_an_evaluator_that_hangs_or_fails_is_told_and_does_not_harm_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, told: str
) -> None:
    (path := tmp_path / "script.py").write_text(script)
    monkeypatch.setattr(evaluator, "_COMMAND", [sys.executable, str(path)])
    monkeypatch.setattr(evaluator, "_LONGEST_START_S", 1.0)
    with Evaluator(tmp_path, 1.0, {}) as scoring:
        scoring.start()
        scoring.finish(quiet=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"warning: the evaluator {told}; the run itself is written, and")
    assert said.err.count("\n") == 1
    assert evaluators() == []
