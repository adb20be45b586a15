"""The benchmarks run and write what they promise; no test looks at how fast anything is."""

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import common, networks
from benchmarks.all_reduce import OURS
from gradwire.compression import CODECS
from gradwire.core.records.errors import UsageError
from strategies import STRATEGIES
from strategies.all_reduce.expected import all_reduces
from tests.pools import NEEDS_MPI
from tests.ranks import LIMIT
from tests.runs import ROOT

HEADS = "claim", "hardware", "n"
Rows = list[dict[str, Any]]


def run(name: str, *arguments: str) -> None:
    """Give a benchmark its arguments, in this process."""
    module, threads = importlib.import_module(f"benchmarks.{name}"), torch.get_num_threads()
    (kind,) = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__
               and issubclass(one, common.Settings))  # fmt: skip
    try:
        common.run(module.__doc__ or "", kind, module.measure, arguments)
    finally:
        torch.set_num_threads(threads)


def figures(folder: Path, capsys: pytest.CaptureFixture[str], name: str, *arguments: str, head: str = "") -> Rows:
    """Run a benchmark; return what it wrote, its general promises checked."""
    path = folder / "figures.json"
    run(name, *arguments, "--out", str(path))
    return check(capsys.readouterr().out, path, [*HEADS, *head.split()])


def check(out: str, path: Path, heads: Sequence[str]) -> Rows:
    """Return the rows that were kept; compare what was printed with them, which must be figures."""
    kept = json.loads(path.read_text())
    assert set(kept) == {"machine", "git_commit", "options", "rows"}
    assert {"cpu", "cores", "torch", "python"} <= set(kept["machine"])
    assert kept["options"]["repeats"] >= 1
    rows: Rows = kept["rows"]
    assert [line.split()[0] for line in out.splitlines()[: len(heads)]] == list(heads)
    assert len(out.splitlines()) == len(heads) + 1 + len(rows), "one line per row, under the names"
    for key, value in (item for row in rows for item in row.items()):
        assert not isinstance(value, float) or value > 0 or key == "error", key
    for row in rows:
        for key in (key for key in row if key.endswith("_quartiles")):
            low, high = row[key]
            assert 0 < low <= row[key.removesuffix("_quartiles")] <= high
    return rows


@dataclasses.dataclass
class Case:
    """A small run of a benchmark, some columns of its rows, and what holds of each row."""

    arguments: str
    columns: str
    expected: list[tuple[Any, ...]]
    law: Callable[[dict[str, Any]], bool] = lambda row: True
    head: str = ""


def is_right_server(row: dict[str, Any]) -> bool:
    samples_per_update = 4 if row["mode"] == "asynchronous" else 4 * row["workers"]
    return row["samples_per_s"] == pytest.approx(samples_per_update * row["updates_per_s"])


def is_right_all_reduce(row: dict[str, Any]) -> bool:
    peers = [peer for peer in ("gloo", "mpi") if f"{peer}_us" in row]
    of_peers = {f"{over}{peer}_{what}" for peer in peers for over in ("", "over_") for what in ("us", "ratio")}
    found = {key for key in row if not key.endswith("_quartiles")}
    of_peers |= {f"{peer}_{what}_ratio" for peer in peers for what in ("best", "chosen")}
    of_peers |= {f"{name}_us" for name in (*OURS, "chosen", "copy")}
    is_known = row["chosen"] in all_reduces()
    return is_known and found == {"world_size", "numel", "chosen", "copy_share", *of_peers}


SERVERS = [("synchronous", "param_server"), ("synchronous", "gloo_reduce_broadcast"),
           ("asynchronous", "async_param_server")]  # fmt: skip
PREDICTED = [
    name for name, kind in STRATEGIES.items()
    if kind().cost().path and not kind().cost().code and kind.traits.ranks[0] <= 2
]  # fmt: skip
SIZES = "--world_size 3 --sizes 100000 1000000 --repeats 2 --peers"
SUMS = [(3, 100000), (3, 1000000)]


CASES = {
    "all_reduce": Case(f"{SIZES} gloo", "world_size numel", SUMS, is_right_all_reduce, "ranks"),
    "training": Case(
        "--n_gpus 2 --models mlp --repeats 2 --steps 2 --batch_size 8", "model n_gpus strategy peer",
        [("mlp", 2, "ring_all_reduce", "ring_all_reduce_builtin"), ("mlp", 2, "param_server", "gloo_reduce_broadcast")],
    ),
    "training, gpt": Case(
        "--models gpt --repeats 2 --steps 2 --batch_size 2", "model n_gpus strategy peer",
        [("gpt", 2, f"fully_sharded{how}", "fully_sharded_builtin") for how in ("", " --prefetch")],
    ),
    "startup": Case(
        "--ranks 2 --repeats 1", "what", [("import torch",), ("first run, to its end",), ("2 ranks ready",)],
        lambda row: row["ratio"] == 1 or row["what"] == "first run, to its end",
    ),
    "prediction": Case(
        "--ranks 2 --mbit 2 --parameters 1000 --repeats 2", "strategy",
        [(name,) for name in PREDICTED if name != "single"],
        lambda row: row["simulated_ms"] == pytest.approx(row["predicted_ms"], rel=0.01) and row["measured_ms"] >= 5,
    ),
    "parameter_server": Case(
        "--workers 1 2 --repeats 1 --steps 2 --batch_size 4", "workers mode server",
        [(n, *row) for n in (1, 2) for row in SERVERS], is_right_server,
    ),
    "all_reduce, mpi": Case(f"{SIZES} gloo mpi", "world_size numel", SUMS, is_right_all_reduce, "ranks"),
}  # fmt: skip
MARKS = {
    "all_reduce, mpi": [pytest.mark.end_to_end, *NEEDS_MPI],
    "parameter_server": [pytest.mark.exhaustive],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [pytest.mark.end_to_end])) for name in CASES]
)
def test_a_small_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    rows = figures(tmp_path, capsys, name.split(",")[0], *case.arguments.split(), head=case.head)
    assert [tuple(row[column] for column in case.columns.split()) for row in rows] == case.expected
    assert all(map(case.law, rows)), rows


@pytest.mark.slow
@pytest.mark.end_to_end
def test_compression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = figures(tmp_path, capsys, "compression", "--elements", "20000", "--repeats", "2")
    coded = {row["what"]: row for row in rows if row["encode_ms"] != ""}
    assert set(coded) == set(CODECS)
    assert coded["none"]["percent"] == 100
    assert coded["topk"]["percent"] == pytest.approx(2)
    assert coded["blosc"]["error"] == 0
    assert 0 < coded["fp16"]["error"] < 1e-3 < coded["topk"]["error"] < 1
    compared = {row["what"]: row for row in rows if row["torch_ms"] != ""}
    assert set(compared) == {"selection.top", "selection.above", "powersgd, rank 2"}
    assert compared["selection.top"]["error"] == 0
    assert all(row["ratio"] > 0 for row in compared.values())


@pytest.mark.end_to_end
def test_a_benchmark_is_a_script(tmp_path: Path) -> None:
    line = [sys.executable, "benchmarks/all_reduce.py", "--sizes", "1000", "2000", "--repeats", "2"]
    done = subprocess.run([*line, "--out", str(tmp_path / "figures.json")], cwd=ROOT, capture_output=True, text=True,
                          timeout=LIMIT, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = check(done.stdout, tmp_path / "figures.json", [*HEADS, "ranks"])
    assert [(row["world_size"], row["numel"]) for row in rows] == [(2, 1000), (2, 2000)]
    assert all(map(is_right_all_reduce, rows))


def test_a_ratio_is_the_median_of_what_its_quartiles_are_of() -> None:
    over, under = np.array([1.0, 2.0, 9.0, 3.0, 4.0]), np.array([1.0, 4.0, 2.0, 6.0, 8.0])
    assert common.figures(ratio=over / under) == {"ratio": 0.5, "ratio_quartiles": [0.5, 1.0]}
    assert np.median(over) / np.median(under) == 0.75


# What is not installed, and what is wrong


def test_all_reduce_without_mpi_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="--peers mpi: needs mpirun and mpi4py: pip install"):
        run("all_reduce", "--peers", "mpi")


WRONG = """
compression --elements 1001
compression --codecs topk zip
prediction --compute_ms -1
training --n_gpus 1
training --models vgg
parameter_server --workers 2 0
all_reduce --peers nccl
all_reduce --no_such_option
parameter_server --workers 2 2
startup --repeats 0
startup --out /dev/null/figures.json
"""


@pytest.mark.parametrize("line", WRONG.split("\n")[1:-1])
def test_bad_usage_names_the_option(line: str) -> None:
    name, option, *values = line.split()
    with pytest.raises(UsageError, match=option.strip("-")):
        run(name, option, *values)


def test_the_networks_have_the_sizes_that_the_claims_name() -> None:
    for network, size in {networks.cnn: 1_199_882, networks.mlp: 5_824_522}.items():
        assert sum(p.numel() for p in network((1, 28, 28), 10).parameters()) == size
