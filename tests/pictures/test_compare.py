"""`python -m gradwire compare`: runs side by side, the options that differ, and one line for what is no run."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradwire.core.records.files import write_run
from gradwire.pictures import compare
from tests.pictures.samples import METADATA, parameter_server_events, parameter_server_table, unrecorded_table

OPTIONS: dict[str, Any] = {"strategy": "parameter_server", "n_gpus": 3, "run_name": "x", "lr": 0.1, "slow": []}


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def write(folder: Path, name: str, **facts: Any) -> None:
    write_run(folder, name, parameter_server_events(), parameter_server_table(), METADATA | facts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    events = parameter_server_events()
    write(tmp_path, "ps.1")
    write_run(tmp_path, "off", events, unrecorded_table(), METADATA | {"replicas_identical": False})
    (tmp_path / "ps.1.trace.json").write_text('{"traceEvents": []}')  # which a pattern passes over
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = compare.main(arguments)
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


AFTER = [name for name in compare.AFTER if name not in ("peak MB", "staleness", "threads")]
HEADER = ["run", *compare.BEFORE, "test accuracy", *AFTER]
PS = ["ps.1", "parameter_server", "3", "2", "0.7500", "13.00", "20.0", "0.0", "0.0", "25.0"]
OFF = ["off", "single", "1", "1", "-", "2.00", "5.0", "-", "-", "-"]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["ps.1.json", "off.csv"], [[*PS, "yes"], [*OFF, "no"]]),
        (["ps*.json"], [[*PS, "yes"]]),
    ],
)
def test_compare_prints_runs_in_the_order_given_without_empty_columns(
    folder: Path, arguments: Sequence[str], rows: Sequence[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    header, *lines = printed(capsys, *arguments).splitlines()
    assert cells(header) == HEADER
    assert [cells(line) for line in lines] == rows
    assert len({len(line) for line in (header, *lines)}) == 1


def test_compare_shows_the_threads_and_the_options_that_differ(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "a", threads={"0": 1, "1": 1}, options=OPTIONS | {"slow": ["1:3", "2:3"], "n_push": 4})
    write(folder, "b", threads={"0": 1, "1": 2}, options=OPTIONS | {"run_name": "b", "lr": 0.25})
    header, *lines = printed(capsys, "a.json", "b.json").splitlines()
    place = cells(header).index("threads")
    assert [cells(line)[place] for line in lines] == ["1", "1 to 2"]
    assert cells(header)[-3:] == ["--lr", "--slow", "--n_push"]
    assert [cells(line)[-3:] for line in lines] == [["0.1", "1:3,2:3", "4"], ["0.25", "-", "-"]]
    assert "--" not in printed(capsys, "a.json"), "one run has nothing to differ from"


def test_the_last_runs_are_those_that_ended_last(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ended in (("a", "2026-01-03 10:00:00"), ("b", "2026-01-02 10:00:00"), ("c", "2026-01-01 10:00:00")):
        write(folder, name, ended=ended)
    lines = printed(capsys, "[abc].json", "--last", "2").splitlines()
    assert [line.split()[0] for line in lines] == ["run", "b", "a"]


def with_accuracy(folder: Path, name: str, accuracy: float, **options: Any) -> None:
    table = parameter_server_table()
    table.loc[table["test_accuracy"].notna(), "test_accuracy"] = accuracy
    write_run(folder, name, parameter_server_events(), table, METADATA | {"options": OPTIONS | options})


def test_runs_of_several_seeds_are_one_row_of_means_and_ranges(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, accuracy in enumerate((0.7, 0.75, 0.83)):
        with_accuracy(folder, f"a{seed}", accuracy, seed=seed, run_name=f"a{seed}")
        with_accuracy(folder, f"b{seed}", accuracy, seed=seed, run_name=f"b{seed}", lr=0.2)
    with_accuracy(folder, "c", 0.9, seed=0, run_name="c")  # once more
    header, *lines = printed(capsys, "a*.json", "b*.json", "c.json").splitlines()
    assert [cells(line)[0] for line in lines] == ["a0 and 2 more seeds", "b0 and 2 more seeds", "c"]
    place = cells(header).index("test accuracy")
    assert [cells(line)[place] for line in lines] == [*["0.7600 (0.7000 to 0.8300)"] * 2, "0.9000"]
    assert cells(header)[-2:] == ["--lr", "--seed"]
    assert [cells(line)[-2:] for line in lines] == [["0.1", "0,1,2"], ["0.2", "0,1,2"], ["0.1", "0"]]


def test_a_line_says_that_runs_take_batches_of_different_sizes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "a", options=OPTIONS | {"batch_size": 64, "global_batch_size": None})
    write(folder, "b", options=OPTIONS | {"batch_size": 64, "global_batch_size": 192})
    text = printed(capsys, "a.json", "b.json")
    assert "different" in text
    assert "128 in parameter_server; 192 in parameter_server" in text
    assert text.rstrip().endswith("--global_batch_size 192.")
    write(folder, "c", options=OPTIONS | {"batch_size": 96, "global_batch_size": None})
    assert "different" not in printed(capsys, "b.json", "c.json"), "two workers take 192 too"
