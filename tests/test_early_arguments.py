"""What is known and done before torch is loaded: it decides how long a user waits for the first line."""

import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import early_arguments
from gradwire.compression import CODECS
from strategies import STRATEGIES
from tests.ranks import LIMIT
from tests.runs import ROOT

WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None  # to import it is an error
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path("train.py", run_name="__main__")
"""


UP_TO_THE_FORK_SERVER = """
import runpy, sys
from gradwire.core import launchers
launchers.warm_up = lambda: sys.exit(str(sorted(sys.modules)))
runpy.run_path("train.py", run_name="__main__")
"""


def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.of_every_strategy
def test_they_are_those_of_the_tables() -> None:
    assert early_arguments.names("--strategy") == list(STRATEGIES)
    assert early_arguments.names("--codec") == list(CODECS)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--list"], 0, "one by one"),
        (["--strategy", "ring"], 2, "error: --strategy ring: unknown; did you mean ring_all_reduce? there are single,"),
        (["--n_gpus", "4", "--codec=topp"], 2, "error: --codec topp: unknown; did you mean topk? there are none,"),
    ],
)
def test_the_main_job_answers_before_it_loads_torch(arguments: list[str], code: int, expected: str) -> None:
    done = run(WITHOUT_TORCH, *arguments)
    assert done.returncode == code, done.stderr
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_fork_server_is_started_before_anything_large_is_loaded() -> None:
    modules = run(UP_TO_THE_FORK_SERVER).stderr
    assert modules.startswith("["), modules
    for large in ("torch", "numpy", "pandas", "tyro"):
        assert f"'{large}'" not in modules


def test_a_list_that_lacks_a_strategy_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = early_arguments.listed()
    assert text
    (shorter := tmp_path / "catalogue.txt").write_text(text.replace("sparta  (", ""))
    monkeypatch.setattr(early_arguments, "CATALOGUE", shorter)
    assert early_arguments.listed() is None
