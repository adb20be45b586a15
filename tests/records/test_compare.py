"""`python -m records.compare`: runs side by side, and one line for what is none."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from records.compare import HEADER
from records.files import (
    write_run,
)
from records.tables import COLUMNS
from tests.records.samples import METADATA, parameter_server_events, parameter_server_table, unrecorded_table
from tests.runs import ROOT


def compare(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "records.compare", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    events = parameter_server_events()
    write_run(tmp_path, "ps.1", events, parameter_server_table(), METADATA)
    write_run(tmp_path, "off", events, unrecorded_table(), METADATA | {"replicas_identical": False})
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "foreign.csv").write_text("a,b\n1,2\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.csv").write_bytes((tmp_path / "off.csv").read_bytes())
    (tmp_path / "list.json").write_text(json.dumps(list(METADATA)))
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (tmp_path / "unfinished.csv").write_text(",".join(COLUMNS) + "\n")
    (tmp_path / "alone.json").write_text(json.dumps(METADATA))
    return tmp_path


PS = ["ps.1", "parameter_server", "3", "2", "0.7500", "13.00", "20.0", "0.0", "25.0", "-"]
OFF = ["off", "single", "1", "1", "-", "2.00", "5.0", "-", "-", "-"]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["ps.1.json", "off.csv"], [[*PS, "yes"], [*OFF, "no"]]),
        (["off.json", "ps.1.csv", "off.csv"], [[*OFF, "no"], [*PS, "yes"]]),
        (["ps*.json"], [[*PS, "yes"]]),
    ],
)
def test_compare_prints_runs_in_the_order_given(
    results: Path, arguments: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    done = compare(results, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert cells(header) == list(HEADER)
    assert [cells(line) for line in lines] == rows
    assert len({len(line) for line in (header, *lines)}) == 1


def test_compare_needs_no_json(results: Path) -> None:
    (results / "ps.1.json").unlink()
    done = compare(results, "ps.1.csv")
    assert cells(done.stdout.splitlines()[1]) == [*PS, "-"]


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("missing.csv", "missing.csv"),
        ("nothing*.json", "nothing*.json"),
        ("broken.json", "broken."),
        ("alone.json", "alone.csv"),
        ("foreign.csv", "foreign.csv"),
        ("binary.csv", "binary.csv"),
        ("ragged.csv", "ragged.csv"),
        ("unfinished.csv", "unfinished.csv"),
        ("list.csv", "list.json"),
        ("off.events.csv.gz", "off.events.csv.gz"),
        (".", "."),
    ],
)
def test_compare_names_the_bad_file_in_one_line(results: Path, argument: str, named: str) -> None:
    done = compare(results, "ps.1.csv", argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"compare: {named}")


def test_compare_passes_over_the_traces_beside_the_runs(results: Path) -> None:
    (results / "ps.1.trace.json").write_text('{"traceEvents": []}')
    assert compare(results, "ps*.json").stdout == compare(results, "ps.1.json").stdout
    done = compare(results, "ps.1.trace.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "compare: ps.1.trace.json: the trace of a run; give its .json\n"


def test_compare_explains_itself(tmp_path: Path) -> None:
    nothing, wanted = compare(tmp_path), compare(tmp_path, "--help")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.startswith("usage:")
    assert (wanted.returncode, wanted.stderr) == (0, "")
    assert "pattern" in wanted.stdout
