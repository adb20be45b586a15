"""The Speed table is what its generator makes of the kept figures; a number edited by hand is found."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, run_all
from gradwire.core.records.errors import RunFailed, UsageError

KEPT = report.KEPT
README = report.README.read_text(encoding="utf-8")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def with_quartiles(row: dict[str, Any], name: str = "ratio") -> str:
    low, high = row[f"{name}_quartiles"]
    return f"{row[name]:.3g} ({low:.3g}-{high:.3g})"


def test_every_benchmark_is_run_kept_and_shown() -> None:
    assert {path.stem for path in KEPT.glob("*.json")} == {*report.TABLE, "training_gpt", "handling"}
    text = report.with_table(README, report.load(KEPT))
    assert text == README, "python -m benchmarks.report does so; a number that is edited by hand is not what it makes"
    lines = dict(line.split(" | ", 1) for line in text.splitlines() if line.count(" | ") == 1)
    sums = [row for row in rows_of("all_reduce_2") if row["numel"] in (1_000, 10_000, 1_000_000, 16_000_000)]
    sizes = ", ".join(f"{row['numel']:,}" for row in sums)
    cell = lines[f"| ring against gloo's all-reduce, 2 ranks, {sizes} elements"]
    assert cell == ", ".join(with_quartiles(row, "gloo_ratio") for row in sums) + " |"
    for row in rows_of("training"):
        what = f"| training the {row['model'].upper()}, 2 processes: `{row['strategy']}` against `{row['peer']}`"
        assert lines[what] == f"{with_quartiles(row)} |"


def test_figures_that_are_missing_damaged_or_of_two_machines_are_refused(kept: Path, tmp_path: Path) -> None:
    def change(name: str, **machine: Any) -> None:
        figures = json.loads((kept / f"{name}.json").read_text())
        (kept / f"{name}.json").write_text(json.dumps(figures | {"machine": figures["machine"] | machine}))

    with pytest.raises(UsageError, match=r"benchmarks\.run_all"):
        report.load(tmp_path / "nothing")
    change("training", platform="Linux-7")
    assert "training" in report.load(kept), "a new kernel does not make another machine"
    change("startup", cores=4000)
    with pytest.raises(UsageError, match="not all figures are of one machine"):
        report.load(kept)
    (kept / "startup.json").write_text("[]")
    with pytest.raises(UsageError, match=r"startup\.json: not the figures"):
        report.load(kept)


def test_a_benchmark_that_fails_is_told_and_the_others_are_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[list[str]] = []

    def finish(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        done.append(command[1:])
        return subprocess.CompletedProcess(command, int("startup" in command[1]))

    monkeypatch.setattr(subprocess, "run", finish)
    with pytest.raises(RunFailed, match=r"^1 of 9 benchmarks failed: startup$"):
        run_all.main(run_all.Settings(str(tmp_path)))
    assert done[0] == ["benchmarks/all_reduce.py", "--world_size", "2", "--out", f"{tmp_path}/all_reduce_2.json"]
    assert [Path(command[-1]).stem for command in done] == list(report.TABLE)
    assert all((report.README.parent.parent / script).exists() for script, *_ in done)
