"""The benchmarks run and write what they promise; no test looks at how fast anything is."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import NAMES, common, report
from benchmarks.__main__ import start
from benchmarks.all_reduce import OURS
from gradwire.compression import CODECS
from gradwire.core.records.errors import RunFailed, UsageError
from strategies import STRATEGIES
from strategies.all_reduce.predictions import all_reduces
from tests.pools import NEEDS_MPI
from tests.ranks import LIMIT
from tests.runs import ROOT

Row = dict[str, Any]
SERVERS = [("synchronous", "param_server"), ("synchronous", "gloo_reduce_broadcast"),
           ("asynchronous", "async_param_server")]  # fmt: skip
PREDICTED = [
    name for name, kind in STRATEGIES.items()
    if kind().cost().path and not kind().cost().code and kind.traits.ranks[0] <= 2 and name != "single"
]  # fmt: skip


@dataclasses.dataclass
class Case:
    """A small run of a benchmark, some columns of its rows, and what holds of each row."""

    line: str
    columns: str
    expected: list[tuple[Any, ...]]
    law: Callable[[Row], bool] = lambda row: True
    marks: Sequence[Any] = (pytest.mark.end_to_end,)


def is_right_server(row: Row) -> bool:
    samples_per_update = 4 if row["mode"] == "asynchronous" else 4 * row["workers"]
    return bool(row["samples_per_s"] == pytest.approx(samples_per_update * row["updates_per_s"]))


def is_right_all_reduce(row: Row) -> bool:
    peers = [peer for peer in ("gloo", "mpi") if f"{peer}_us" in row]
    expected = {f"{over}{peer}_{what}" for peer in peers for over in ("", "over_") for what in ("us", "ratio")}
    expected |= {f"{peer}_{what}_ratio" for peer in peers for what in ("best", "chosen")}
    expected |= {f"{name}_us" for name in (*OURS, "chosen", "copy")} | {"world_size", "numel", "chosen", "copy_share"}
    return row["chosen"] in all_reduces() and {key for key in row if not key.endswith("_quartiles")} == expected


def is_right_code(row: Row) -> bool:
    percent, errors = {"none": 100, "topk": 2}, {"blosc": (0, 0), "fp16": (1e-9, 1e-3), "topk": (1e-3, 1)}
    low, high = errors.get(row["what"], (0, float("inf")))
    is_coded = row["encode_ms"] != "" and row["percent"] == pytest.approx(percent.get(row["what"], row["percent"]))
    return (is_coded and low <= row["error"] <= high) if row["ratio"] == "" else row["ratio"] > 0


CASES = [
    Case(
        "all_reduce --world_size 3 --sizes 1000 --repeats 2 --peers gloo mpi", "world_size numel", [(3, 1000)],
        is_right_all_reduce, [pytest.mark.end_to_end, *NEEDS_MPI],
    ),
    Case(
        "training --n_gpus 2 --models mlp gpt --repeats 2 --steps 2 --batch_size 2", "model strategy peer",
        [("mlp", "ring_all_reduce", "ring_all_reduce_builtin"), ("mlp", "param_server", "gloo_reduce_broadcast"),
         *(("gpt", f"fully_sharded{how}", "fully_sharded_builtin") for how in ("", " --prefetch"))],
    ),
    Case(
        "startup --ranks 2 --repeats 1", "what", [("import torch",), ("first run, to its end",), ("2 ranks ready",)],
        lambda row: row["ratio"] == 1 or row["what"] == "first run, to its end", [pytest.mark.exhaustive],
    ),
    Case(
        "prediction --ranks 2 --mbit 2 --parameters 1000 --repeats 2", "strategy", [(name,) for name in PREDICTED],
        lambda row: row["simulated_ms"] == pytest.approx(row["predicted_ms"], rel=0.01) and row["measured_ms"] >= 5,
    ),
    Case(
        "parameter_server --workers 1 2 --repeats 1 --steps 2 --batch_size 4", "workers mode server",
        [(n, *row) for n in (1, 2) for row in SERVERS], is_right_server, [pytest.mark.exhaustive],
    ),
    Case(
        "compression --elements 20000 --repeats 2", "what",
        [*((name,) for name in CODECS), ("selection.top",), ("selection.above",), ("powersgd, rank 2",)], is_right_code,
    ),
]  # fmt: skip


def run(*line: str) -> None:
    """Give a benchmark its arguments, in this process."""
    threads = torch.get_num_threads()
    try:
        start(line)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("case", [pytest.param(case, marks=case.marks, id=case.line) for case in CASES])
def test_a_small_run(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *options = case.line.split()
    run(name, *options, "--out", str(tmp_path / "figures.json"))
    out, kept = capsys.readouterr().out.splitlines(), json.loads((tmp_path / "figures.json").read_text())
    assert set(kept) == {"machine", "git_commit", "options", "rows"}
    assert kept["options"]["repeats"] == int(options[options.index("--repeats") + 1])
    heads = ["claim", "hardware", "n", *["ranks"] * (name == "all_reduce")]
    assert [line.split()[0] for line in out[: len(heads)]] == heads
    rows: list[Row] = kept["rows"]
    assert len(out) == len(heads) + 1 + len(rows), "one line per row, under the names"
    for row in rows:
        assert all(not isinstance(value, float) or value > 0 or key == "error" for key, value in row.items())
        for key in (key for key in row if key.endswith("_quartiles")):
            assert 0 < row[key][0] <= row[key.removesuffix("_quartiles")] <= row[key][1]
    assert [tuple(row[column] for column in case.columns.split()) for row in rows] == case.expected
    assert all(map(case.law, rows)), rows


@pytest.mark.end_to_end
def test_a_benchmark_is_a_command(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "benchmarks", "compression", "--codecs", "topk", "--elements", "1000"]
    line += ["--repeats", "2", "--out", str(tmp_path / "figures.json")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert rows[0]["what"] == "topk"
    assert all(map(is_right_code, rows)), rows


def test_a_ratio_is_the_median_of_what_its_quartiles_are_of() -> None:
    over, under = np.array([1.0, 2.0, 9.0, 3.0, 4.0]), np.array([1.0, 4.0, 2.0, 6.0, 8.0])
    assert common.figures(ratio=over / under) == {"ratio": 0.5, "ratio_quartiles": [0.5, 1.0]}


WRONG = """
compression --elements 1001
compression --codecs topk zip
prediction --compute_ms -1
training --n_gpus 1
training --models vgg
winners --points
parameter_server --workers 2 0
all_reduce --peers nccl
all_reduce --no_such_option
parameter_server --workers 2 2
startup --repeats 0
startup --out /dev/null/figures.json
"""


@pytest.mark.parametrize("line", WRONG.split("\n")[1:-1])
def test_bad_usage_names_the_option(line: str) -> None:
    with pytest.raises(UsageError, match=line.split()[1].strip("-")):
        run(*line.split())


def test_a_wrong_name_is_told_and_without_one_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="benchmark winer: unknown; did you mean winners"):
        run("winer")
    with pytest.raises(UsageError, match="name a benchmark"):
        run()
    listed = capsys.readouterr().out
    assert all(name in listed for name in NAMES)


@pytest.mark.parametrize(
    "former", [["-m", "benchmarks.winners"], ["benchmarks/startup.py", "--ranks", "1"], ["benchmarks/winners.py"]]
)
def test_a_former_script_is_refused(former: list[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *former], cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT)
    assert done.returncode == 2
    assert b"is now python -m benchmarks " in done.stderr


def test_all_reduce_without_mpi_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="--peers mpi: needs mpirun and mpi4py: pip install"):
        run("all_reduce", "--peers", "mpi")


# The Speed table


def test_the_speed_table_is_that_of_the_kept_figures() -> None:
    readme, kept = report.README.read_text(encoding="utf-8"), report.load(report.KEPT)
    assert {path.stem for path in report.KEPT.glob("*.json")} == {*report.TABLE, "training_gpt", "handling"}
    assert report.with_table(readme, kept) == readme, "python -m benchmarks report does so"
    assert report.with_table(readme.replace("1.07 (", "2.07 ("), kept) == readme, "an edited number is found"
    for row in kept["training"]["rows"]:
        low, high = row["ratio_quartiles"]
        what = f"| training the {row['model'].upper()}, 2 processes: `{row['strategy']}` against `{row['peer']}`"
        assert f"{what} | {row['ratio']:.3g} ({low:.3g}-{high:.3g}) |" in readme


def test_figures_that_are_missing_damaged_or_of_two_machines_are_refused(tmp_path: Path) -> None:
    def keep(name: str, **changes: Any) -> None:
        figures = json.loads((report.KEPT / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps(figures | {"machine": figures["machine"] | changes}))

    with pytest.raises(UsageError, match="report --measure"):
        report.load(tmp_path)
    keep("training", platform="Linux-7")
    keep("startup")
    assert [*report.load(tmp_path)] == ["training", "startup"], "a new kernel does not make another machine"
    keep("startup", cores=4000)
    with pytest.raises(UsageError, match="not all figures are of one machine"):
        report.load(tmp_path)
    (tmp_path / "startup.json").write_text("[]")
    with pytest.raises(UsageError, match=r"startup\.json: not the figures"):
        report.load(tmp_path)


def test_a_benchmark_that_fails_is_told_and_the_others_are_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[list[str]] = []

    def finish(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        done.append(command[1:])
        return subprocess.CompletedProcess(command, int("startup" in command))

    monkeypatch.setattr(subprocess, "run", finish)
    with pytest.raises(RunFailed, match=f"^1 of {len(report.TABLE)} benchmarks failed: startup$"):
        report.main(report.Settings(str(tmp_path), measure=True))
    assert done[0] == ["-m", "benchmarks", "all_reduce", "--world_size", "2", "--out", f"{tmp_path}/all_reduce_2.json"]
    assert [Path(command[-1]).stem for command in done] == list(report.TABLE)
    assert {command[2] for command in done} <= {*NAMES}
