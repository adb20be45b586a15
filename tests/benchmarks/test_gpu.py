"""benchmarks/gpu.sh runs the tests that need a GPU, and writes one report."""

import os
import re
import subprocess
from pathlib import Path

from tests.ranks import LIMIT
from tests.runs import ROOT

SCRIPT = ["bash", str(ROOT / "benchmarks" / "gpu.sh")]


PYTHON = """#!/usr/bin/env bash
case "$*" in
  *device_count\\(\\)\\)\\)*) echo 2 ;;
  *"import sys, torch"*) exit $NO_GPU ;;
  *get_device_name*) echo "GPU 0 Abacus" ;;
  *"--strategy param_server"*) echo "it broke" >&2; exit 3 ;;
  *) echo "ran $*" ;;
esac
"""


def run(folder: Path, no_gpu: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the script where Python runs nothing, and says whether there is a GPU; return the report too."""
    for name, text in (("python", PYTHON), ("nvidia-smi", "#!/bin/sh\necho a table\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    report = folder / "report.txt"
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "NO_GPU": no_gpu}
    done = subprocess.run([*SCRIPT, str(report)], env=environment, capture_output=True, text=True, timeout=LIMIT,
                          check=False)  # fmt: skip
    return done, report


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    done, report = run(tmp_path, "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: torch finds no CUDA device here")
    assert done.stderr.count("\n") == 1
    assert not report.exists()


def test_with_one_it_writes_one_report_of_all_commands(tmp_path: Path) -> None:
    done, report = run(tmp_path, "0")
    assert done.returncode == 1, "one command failed"
    text = report.read_text()
    assert re.search(r"^commit ([0-9a-f]{40}|unknown), \d+ files changed$", text, re.MULTILINE)
    for line in ("GPU 0 Abacus", "a table", "ran -m pytest -n 0 -v -m gpu tests", "it broke"):
        assert f"{line}\n" in text
    assert re.search(r"^exit code 3, \d+ s$", text, re.MULTILINE)
    commands = re.findall(r"^\$ ", text, re.MULTILINE)
    _, summary = text.rsplit("exit code, seconds, command\n", 1)
    codes = re.findall(r"^(\d+), \d+, ", summary, re.MULTILINE)
    assert len(codes) == len(commands) >= 7
    assert sorted(codes) == ["0"] * (len(codes) - 1) + ["3"]
    assert f"report in {report}" in done.stdout
