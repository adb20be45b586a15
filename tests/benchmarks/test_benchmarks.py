"""The benchmarks run and write what they promise; no test looks at how fast anything is."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import all_reduce, common, loading, networks, parameter_server, startup, under_mpirun
from compression import CODECS
from records.errors import RunFailed
from strategies import STRATEGIES
from tests.mpi_ranks import NEEDS_MPI
from tests.ranks import LIMIT
from transports.base import Transport

ROOT = Path(__file__).parent.parent.parent
HEADS = "claim", "hardware", "n"
TINY = ["--workers", "1", "2", "--repeats", "1", "--steps", "2", "--batch_size", "4"]


def figures(
    tmp_path: Path, name: str, *arguments: str, heads: tuple[str, ...] = HEADS, timeout: float = 3 * LIMIT
) -> list[dict[str, Any]]:
    """Run a benchmark; return what it wrote, its general promises checked."""
    path = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *arguments, "--out", str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = kept_rows(path)
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"
    check(done.stdout, rows, heads)
    return rows


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """Return the figures in a kept file, what must stand beside them checked."""
    kept = json.loads(path.read_text())
    assert set(kept) == {"machine", "git_commit", "options", "rows"}
    assert {"cpu", "cores", "torch", "python"} <= set(kept["machine"])
    assert kept["options"]["repeats"] >= 1
    rows: list[dict[str, Any]] = kept["rows"]
    return rows


def check(out: str, rows: list[dict[str, Any]], heads: tuple[str, ...]) -> None:
    """Compare what was printed with what was written, which must be figures."""
    assert tuple(line.split()[0] for line in out.splitlines()[: len(heads)]) == heads
    assert len(out.splitlines()) == len(heads) + 1 + len(rows), "one line per row, under the names"
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float):
                assert value > 0 or key in ("error", "hidden"), key
            if key.endswith("_quartiles"):
                low, high = value
                assert 0 < low <= row[key.removesuffix("_quartiles")] <= high


def test_a_ratio_is_the_median_of_what_its_quartiles_are_of() -> None:
    over, under = np.array([1.0, 2.0, 9.0, 3.0, 4.0]), np.array([1.0, 4.0, 2.0, 6.0, 8.0])
    assert common.ratio(over, under) == {"ratio": 0.5, "ratio_quartiles": [0.5, 1.0]}
    assert np.median(over) / np.median(under) == 0.75


@pytest.mark.slow
@pytest.mark.parametrize("peers", [["gloo"], pytest.param(["gloo", "mpi"], marks=NEEDS_MPI)], ids=" ".join)
def test_all_reduce(peers: list[str], tmp_path: Path) -> None:
    sizes = ["--sizes", "100000", "1000000", "--repeats", "2"]
    rows = figures(tmp_path, "all_reduce", "--world_size", "3", "--peers", *peers, *sizes, heads=(*HEADS, "ranks"))
    assert [(row["world_size"], row["numel"]) for row in rows] == [(3, 100000), (3, 1000000)]
    of_peers = [f"{over}{peer}_{what}" for peer in peers for over in ("", "over_") for what in ("us", "ratio")]
    for row in rows:
        figures_of_row = {key for key in row if not key.endswith("_quartiles")}
        assert figures_of_row == {"world_size", "numel", "ring_us", "naive_us", "copy_us", "copy_share", *of_peers}


def test_all_reduce_without_mpi_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    doc, kind = all_reduce.__doc__ or "", all_reduce.AllReduceSettings
    assert common.main(doc, kind, all_reduce.measure, ["--peers", "mpi"]) == 2
    assert capsys.readouterr().err == "error: --peers mpi: needs mpirun and mpi4py: pip install -e '.[mpi]'\n"


def fail_on_rank_1(transport: Transport) -> None:
    if transport.rank == 1:
        raise ValueError("it is broken")
    transport.recv(1, "never sent")


@pytest.mark.slow
@NEEDS_MPI[0]
@NEEDS_MPI[1]
def test_a_failure_under_mpirun_is_told() -> None:
    with pytest.raises(RunFailed, match=r"(?s)mpirun ended with exit code 1: .*ValueError: it is broken"):
        under_mpirun.launch(fail_on_rank_1, 2)


@pytest.mark.slow
def test_training(tmp_path: Path) -> None:
    rows = figures(
        tmp_path, "training", "--n_gpus", "2", "--models", "mlp", "--repeats", "2", "--steps", "2", "--batch_size", "8"
    )
    assert [(row["model"], row["n_gpus"], row["strategy"], row["peer"]) for row in rows] == [
        ("mlp", 2, "ring_all_reduce", "ring_all_reduce_builtin"),
        ("mlp", 2, "param_server", "gloo_reduce_broadcast"),
    ]


def check_servers(rows: list[dict[str, Any]], expected: list[tuple[str, str]]) -> None:
    """Check the rows of 1 and 2 workers, each with `expected` modes and servers."""
    assert [(row["workers"], row["mode"], row["server"]) for row in rows] == [
        (n_workers, *row) for n_workers in (1, 2) for row in expected
    ]
    for row in rows:
        samples_per_update = 4 if row["mode"] == "asynchronous" else 4 * row["workers"]
        assert row["samples_per_s"] == pytest.approx(samples_per_update * row["updates_per_s"])
        if row["server"] in parameter_server.OURS.values():
            assert row["ratio"] == 1


@pytest.mark.slow
def test_parameter_server_without_ray_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parameter_server, "ray_version", lambda: None)
    path = tmp_path / "figures.json"
    doc, kind = parameter_server.__doc__ or "", parameter_server.ServerSettings
    assert common.main(doc, kind, parameter_server.measure, [*TINY, "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert "ray       is not installed, its rows are left out: pip install ray\n" in out
    rows = kept_rows(path)
    check(out, rows, (*HEADS, "ray"))
    check_servers(
        rows,
        [
            ("synchronous", "param_server"),
            ("synchronous", "gloo_reduce_broadcast"),
            ("asynchronous", "async_param_server"),
        ],
    )


@pytest.mark.slow
def test_parameter_server_against_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    rows = figures(tmp_path, "parameter_server", *TINY, heads=(*HEADS, "ray"), timeout=4 * LIMIT)
    check_servers(
        rows,
        [
            ("synchronous", "param_server"),
            ("synchronous", "gloo_reduce_broadcast"),
            ("synchronous", "ray_example"),
            ("synchronous", "ray_in_place"),
            ("asynchronous", "async_param_server"),
            ("asynchronous", "ray_example"),
            ("asynchronous", "ray_in_place"),
        ],
    )


@pytest.mark.slow
def test_startup(tmp_path: Path) -> None:
    imports, first, ready = figures(tmp_path, "startup", "--ranks", "2", "--repeats", "1")
    assert (imports["what"], imports["ratio"]) == ("import torch", 1)
    assert first["ratio"] == pytest.approx(first["seconds"] / imports["seconds"])
    assert (ready["what"], ready["ratio"]) == ("2 ranks ready", 1)
    assert ready["seconds"] > 0


def test_startup_compares_to_the_first_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "seconds_to_first_step", lambda n_ranks: 1 + n_ranks / 10)
    monkeypatch.setattr(startup, "seconds_of", lambda *command: 2.0 if "train.py" in command else 1.0)
    rows = list(startup.measure(startup.StartupSettings(ranks=(2, 8), repeats=3)))
    assert [row["what"] for row in rows] == ["import torch", "first run, to its end", "2 ranks ready", "8 ranks ready"]
    assert [row["seconds"] for row in rows] == pytest.approx([1, 2, 1.2, 1.8])
    assert [row["ratio"] for row in rows] == pytest.approx([1, 2, 1, 1.5])


@pytest.mark.slow
def test_recording(tmp_path: Path) -> None:
    (row,) = figures(tmp_path, "recording", "--models", "digits_mlp", "--repeats", "2")
    assert (row["model"], row["n_gpus"]) == ("digits_mlp", 2)
    # data, forward, backward, update, and two messages sent and received; waits come on top
    assert row["events_per_step"] >= 8


@pytest.mark.slow
def test_compression(tmp_path: Path) -> None:
    rows = figures(tmp_path, "compression", "--elements", "20000", "--repeats", "2")
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


@pytest.mark.parametrize(
    ("name", "kind", "arguments"),
    [
        ("compression", "CompressionSettings", ["--elements", "1001"]),
        ("compression", "CompressionSettings", ["--codecs", "topk", "zip"]),
        ("loading", "LoadingSettings", ["--workers", "1", "2"]),
        ("loading", "LoadingSettings", ["--device", "tpu"]),
        ("loading", "LoadingSettings", ["--batch_size", "0"]),
        ("overlap", "OverlapSettings", ["--n_gpus", "1"]),
        ("overlap", "OverlapSettings", ["--gbit", "-1"]),
        ("overlap", "OverlapSettings", ["--models", "vgg"]),
        ("overlap", "OverlapSettings", ["--bucket_mb", "0"]),
        ("hogwild", "HogwildSettings", ["--processes", "2", "0"]),
        ("hogwild", "HogwildSettings", ["--models", "mlp", "resnet"]),
        ("all_reduce", "AllReduceSettings", ["--world_size", "1"]),
        ("all_reduce", "AllReduceSettings", ["--sizes", "1000", "0"]),
        ("all_reduce", "AllReduceSettings", ["--peers", "nccl"]),
        ("all_reduce", "AllReduceSettings", ["--no_such_option"]),
        ("training", "TrainingSettings", ["--n_gpus", "1"]),
        ("training", "TrainingSettings", ["--models", "cnn", "resnet"]),
        ("parameter_server", "ServerSettings", ["--workers", "0"]),
        ("parameter_server", "ServerSettings", ["--workers", "2", "2"]),
        ("parameter_server", "ServerSettings", ["--steps", "0"]),
        ("parameter_server", "ServerSettings", ["--batch_size", "0"]),
        ("startup", "StartupSettings", ["--ranks", "0"]),
        ("startup", "StartupSettings", ["--repeats", "0"]),
        ("recording", "RecordingSettings", ["--repeats", "many"]),
        ("recording", "RecordingSettings", ["--out", "/dev/null/figures.json"]),
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
    for network, size in (
        (networks.small_cnn, 21_840),
        (networks.cnn, 1_199_882),
        (networks.mlp, 5_824_522),
        (networks.deep, 3_296_266),
    ):
        assert sum(p.numel() for p in network((1, 28, 28), 10).parameters()) == size


@pytest.mark.slow
def test_hogwild(tmp_path: Path) -> None:
    arguments = ("--processes", "1", "2", "--models", "small_cnn", "mlp", "--steps", "1", "--batch_size", "8")
    rows = figures(tmp_path, "hogwild", *arguments, "--repeats", "2")
    expected = [("small_cnn", 1), ("small_cnn", 2), ("mlp", 1), ("mlp", 2)]
    assert [(row["model"], row["processes"]) for row in rows] == expected


@pytest.mark.slow
def test_memory(tmp_path: Path) -> None:
    rows = figures(tmp_path, "memory", "--steps", "1000", "2000", "--repeats", "1")
    assert [row["steps"] for row in rows] == [1000, 2000]
    assert [row["events_mb"] for row in rows] == pytest.approx([5001 * 80e-6, 10001 * 80e-6])


def test_virtual_time(tmp_path: Path) -> None:
    rows = figures(tmp_path, "virtual_time", "--ranks", "2", "5", "--repeats", "2")
    assert [(row["ranks"], row["messages"]) for row in rows] == [(2, 4), (5, 40)]
    for row in rows:
        assert row["seconds"] == pytest.approx(row["us_a_message"] * row["messages"] / 1e6)


@pytest.mark.slow
def test_link(tmp_path: Path) -> None:
    rows = figures(tmp_path, "link", "--smallest", "--repeats", "1")
    assert [(row["transport"], row["from_to"], row["expected_ms"]) for row in rows] == [
        (transport, ranks, pytest.approx(expected))
        for transport in ("shared_memory", "process_group")
        for ranks, expected in (("1 to 1", 10.1), ("1 to 2", 20.1), ("2 to 1", 20.1))
    ]
    assert all(row["ratio"] > 0.999 for row in rows), "nothing arrives before its time"


@pytest.mark.slow
def test_overlap(tmp_path: Path) -> None:
    small = ("--repeats", "1", "--steps", "1", "--batch_size", "4", "--models", "deep")
    rows = figures(tmp_path, "overlap", *small, "--gbit", "10", "0")
    assert [row["gbit"] for row in rows] == [10, "shared memory"]
    assert rows[0]["ddp_ring"] == ""
    assert rows[1]["ddp_ring"] > 0


LOADING = ("--repeats", "1", "--steps", "1", "--batch_size", "10", "--per_class", "4", "--side", "40")


@pytest.mark.slow
def test_loading(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="needs DALI: pip install -e '.[dali]'")
    rows = figures(tmp_path, "loading", *LOADING, "--image_size", "32")
    assert [(row["loader"], row["workers"], row["device"]) for row in rows] == [
        ("torch", 0, "cpu"), ("torch", 1, "cpu"), ("torch", 2, "cpu"), ("dali", 1, "cpu"), ("dali", 2, "cpu"),
    ]  # fmt: skip
    assert rows[0]["ratio"] == 1


def test_loading_without_dali_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "has_dali", lambda: False)
    path = tmp_path / "figures.json"
    arguments = [*LOADING, "--image_size", "32", "--workers", "0", "--out", str(path)]
    assert common.main(loading.__doc__ or "", loading.LoadingSettings, loading.measure, arguments) == 0
    out = capsys.readouterr().out
    assert "dali      is not installed, its rows are left out: pip install -e '.[dali]'\n" in out
    rows = kept_rows(path)
    check(out, rows, (*HEADS, "dali"))
    assert [(row["loader"], row["workers"]) for row in rows] == [("torch", 0)]


@pytest.mark.slow
def test_prediction(tmp_path: Path) -> None:
    rows = figures(tmp_path, "prediction", "--ranks", "2", "--mbit", "1000", "--parameters", "1000", "--repeats", "2")
    predicted = [name for name, kind in STRATEGIES.items() if kind().cost().path and kind.traits.ranks[0] <= 2]
    assert [row["strategy"] for row in rows] == [name for name in predicted if name != "single"]
    assert {"param_server", "ring_all_reduce", "all_gather"} <= set(predicted)
    for row in rows:
        assert row["simulated_ms"] == pytest.approx(row["predicted_ms"], rel=0.01)
        assert row["measured_ms"] >= 5, "it sleeps so long"
