"""Runs with checkpoints, scripts beside them, and what they leave."""

import csv
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradwire import Options
from gradwire.checkpoints import evaluate, files
from gradwire.checkpoints import folder as folder_of
from gradwire.core.launchers.devices import as_before
from strategies import Strategy
from tests.runs import ROOT, SMALL, arguments, small

BATCH_NORM: dict[str, Any] = {"model": "tests.workload:batch_norm", "n_gpus": 3}


def same(folder: Path) -> dict[str, Any]:
    """Return what differs from a small run in one of 18 steps with a checkpoint every 3."""
    return {
        "n_gpus": 2, "epochs": 3, "checkpoint_every": 3, "checkpoint_keep": 100, "checkpoint_dir": str(folder / "c")
    }  # fmt: skip


def options(folder: Path, strategy: str | Strategy = "ring_all_reduce", **changes: Any) -> Options:
    """Return the options of such a run."""
    return small(folder, strategy, **(same(folder) | changes))


def given(folder: Path, **changes: Any) -> list[str]:
    """Return the command line of such a run."""
    return arguments(SMALL | {"results_dir": folder} | same(folder) | changes)


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a script of ours in a session of its own; kill what is left of it at the end."""
    started = []

    def start(*line: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen([sys.executable, *line], cwd=ROOT, text=True, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def scores(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def steps(path: Path) -> list[int]:
    return [int(row["step"]) for row in scores(path)]


def evaluators() -> list[psutil.Process]:
    """Return the evaluators that this process has started and that have not ended."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended meanwhile
            if "evaluate" in child.cmdline():
                found.append(child)
    return found


def seal(checkpoint: Path) -> None:
    """Give the files of a checkpoint their checksums again, after one of them was changed."""
    run = json.loads((checkpoint / "run.json").read_text())
    for rank in run["checksums"]:
        content = (checkpoint / f"rank-{rank}.pt").read_bytes()
        run["checksums"][rank] = hashlib.sha256(content).hexdigest()
    (checkpoint / "run.json").write_text(json.dumps(files.sealed(run)))


def score_here(folder: Path, **settings: Any) -> None:
    """Score the checkpoints of a folder, the code that the newest names being trusted."""
    for checkpoint in folder_of.listed(folder)[-1:]:
        recorded = files.load_run(checkpoint)["options"]
        named = {name: recorded[name] for name in ("dataset", "model", "task") if ":" in str(recorded[name])}
        settings = named | settings
    with as_before(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "_LINGER_S", 0.0)  # no rank lives on
        evaluate.evaluate_all(evaluate.Settings(str(folder), **settings))
