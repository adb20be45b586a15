"""The benchmarks run and write what they promise; no test looks at how fast anything is."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import common, networks, startup

ROOT = Path(__file__).parent.parent


def figures(tmp_path: Path, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a benchmark; return what it wrote, its general promises checked."""
    path = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *arguments, "--json", str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["claim", "hardware", "n"]
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    assert len(done.stdout.splitlines()) == 3 + 1 + len(rows), "one line per row, under the names"
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float):
                assert value > 0, key
            if key.endswith("_quartiles"):
                low, high = value
                assert 0 < low <= high
    return rows


def test_all_reduce(tmp_path: Path) -> None:
    rows = figures(tmp_path, "all_reduce", "--world_size", "3", "--sizes", "100000", "1000000", "--repeats", "2")
    assert [(row["world_size"], row["numel"]) for row in rows] == [(3, 100000), (3, 1000000)]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["gloo_us"] / row["ring_us"])
        assert row["copy_share"] == pytest.approx(row["copy_us"] / row["ring_us"])
        assert row["naive_us"] > 0


def test_training(tmp_path: Path) -> None:
    rows = figures(
        tmp_path, "training", "--n_gpus", "2", "--models", "mlp", "--repeats", "2", "--steps", "2", "--batch_size", "8"
    )
    assert [(row["model"], row["n_gpus"], row["strategy"], row["peer"]) for row in rows] == [
        ("mlp", 2, "ring_all_reduce", "ring_all_reduce_builtin"),
        ("mlp", 2, "param_server", "gloo_reduce_broadcast"),
    ]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["samples_per_s"] / row["peer_samples_per_s"])


def test_startup(tmp_path: Path) -> None:
    (row,) = figures(tmp_path, "startup", "--ranks", "2", "--repeats", "1")
    assert (row["n_ranks"], row["ratio"]) == (2, 1)
    assert row["seconds"] > 0


def test_startup_compares_to_the_first_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "seconds_to_first_step", lambda n_ranks: 1 + n_ranks / 10)
    rows = list(startup.measure(startup.StartupSettings(ranks=(2, 8), repeats=3)))
    assert [row["n_ranks"] for row in rows] == [2, 8]
    assert [row["seconds"] for row in rows] == pytest.approx([1.2, 1.8])
    assert [row["ratio"] for row in rows] == pytest.approx([1, 1.5])


def test_recording(tmp_path: Path) -> None:
    (row,) = figures(tmp_path, "recording", "--models", "digits_mlp", "--repeats", "2")
    assert (row["model"], row["n_gpus"]) == ("digits_mlp", 2)
    assert row["ratio"] == pytest.approx(row["recorded_ms"] / row["unrecorded_ms"])
    # data, forward, backward, update, and two messages sent and received; waits come on top
    assert row["events_per_step"] >= 8


@pytest.mark.parametrize(
    ("name", "kind", "arguments"),
    [
        ("all_reduce", "AllReduceSettings", ["--world_size", "1"]),
        ("all_reduce", "AllReduceSettings", ["--sizes", "1000", "0"]),
        ("all_reduce", "AllReduceSettings", ["--no_such_option"]),
        ("training", "TrainingSettings", ["--n_gpus", "1"]),
        ("training", "TrainingSettings", ["--models", "cnn", "resnet"]),
        ("startup", "StartupSettings", ["--ranks", "0"]),
        ("startup", "StartupSettings", ["--repeats", "0"]),
        ("recording", "RecordingSettings", ["--repeats", "many"]),
        ("recording", "RecordingSettings", ["--json", "/dev/null/figures.json"]),
    ],
)
def test_bad_usage_exits_with_2_and_names_the_option(
    name: str, kind: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    try:
        code: Any = common.main(module.__doc__ or "", getattr(module, kind), module.measure, arguments)
    except SystemExit as exit:  # of what tyro refuses
        code = exit.code
    assert code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert arguments[0].strip("-") in error or "/dev/null" in error


def test_the_networks_have_the_sizes_that_the_claims_name() -> None:
    for network, size in ((networks.cnn, 1_199_882), (networks.mlp, 5_824_522)):
        assert sum(p.numel() for p in network((1, 28, 28), 10).parameters()) == size
