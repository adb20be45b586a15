"""The Speed table is what its generator makes of the kept figures; a number edited by hand is found."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, run_all
from records.errors import RunFailed, UsageError

MACHINE = {"cpu": "Abacus", "cores": 2, "torch": "2.0", "python": "3.11"}
RATIO = {"ratio": 2.5, "ratio_quartiles": [2.25, 2.75]}
OVERLAP = {"n_gpus": 2, "gbit": 10.0, "none_ms": 10.0, **RATIO, "ddp_ring": ""}
GLOO = {
    "gloo_ratio": 2.5, "gloo_ratio_quartiles": [2.25, 2.75], "over_gloo_ratio": 1, "over_gloo_ratio_quartiles": [1, 1],
}  # fmt: skip
MPI = {
    "mpi_ratio": 1.2, "mpi_ratio_quartiles": [1.1, 1.3], "over_mpi_ratio": 0.9, "over_mpi_ratio_quartiles": [0.8, 1],
}  # fmt: skip
NOT_MEASURED = dict.fromkeys(("encode_ms", "decode_ms", "percent", "error", "ms", "torch_ms", "ratio"), "")
ROWS: dict[str, list[dict[str, Any]]] = {
    "all_reduce_2": [{"world_size": 2, "numel": 1000, "ring_us": 50.0, "naive_us": 40.0, **GLOO}],
    "all_reduce_4": [{"world_size": 4, "numel": 1000, "ring_us": 90.0, "naive_us": 60.0, **GLOO}],
    "all_reduce_mpi_2": [{"world_size": 2, "numel": 1000, **MPI}],
    "all_reduce_mpi_4": [{"world_size": 4, "numel": 1000, **MPI}],
    "training": [{"model": "mlp", "n_gpus": 2, "strategy": "ring_all_reduce", "peer": "ddp", **RATIO}],
    "parameter_server": [
        {"workers": 1, "mode": "synchronous", "server": "param_server", "ratio": 1, "ratio_quartiles": [1, 1]},
        {"workers": 1, "mode": "synchronous", "server": "gloo", **RATIO},
        {"workers": 2, "mode": "synchronous", "server": "gloo", **RATIO},
    ],
    "startup": [
        {"what": "import torch", "seconds": 2.0, "ratio": 1, "ratio_quartiles": [1, 1]},
        {"what": "first run", "seconds": 5.0, **RATIO},
    ],
    "memory": [{"steps": 1000, "rank_mb": 200.0}, {"steps": 2000, "rank_mb": 201.0}],
    "virtual_time": [
        {"ranks": 16, "messages": 480, "us_a_message": 30.2, "seconds": 0.01},
        {"ranks": 256, "messages": 130560, "us_a_message": 41.0, "seconds": 5.35},
    ],
    "link": [
        {"transport": "shared_memory", "gbit": 1.0, "expected_ms": 10.1, "ratio": 1.01},
        {"transport": "shared_memory", "gbit": 1.0, "expected_ms": 20.1, "ratio": 1.02},
    ],
    "compression": [
        {**NOT_MEASURED, "what": "topk", "elements": 5_800_000, "encode_ms": 12.0, "decode_ms": 2.0, "percent": 2.0,
         "error": 0.8},
        {**NOT_MEASURED, "what": "selection.above", "elements": 5_800_000, "torch_ms": 80.0, "error": -0.01, **RATIO},
    ],
    "loading": [
        {"loader": "torch", "workers": 0, "images_per_s": 200.0, "ratio": 1, "ratio_quartiles": [1, 1]},
        {"loader": "torch", "workers": 1, "images_per_s": 500.0, **RATIO},
        {"loader": "torch", "workers": 2, "images_per_s": 500.4, **RATIO},
        {"loader": "dali", "workers": 1, "images_per_s": 499.6, **RATIO},
    ],
    "overlap": [
        {**OVERLAP, "model": "deep", "ring_ms": 15.0, "hidden": 0.4},
        {**OVERLAP, "model": "cnn", "ring_ms": 10.5, "hidden": -2.0},
        {**OVERLAP, "model": "mlp", "gbit": "shared memory", "ring_ms": 10.5, "hidden": -0.1, "ddp_ring": 1.4,
         "ddp_ring_quartiles": [1.3, 1.5], "ddp_overlapped": 1.2, "ddp_overlapped_quartiles": [1.1, 1.3]},
    ],
    "hogwild": [
        {"model": "small_cnn", "processes": 1, "updates_per_s": 100.0, "torch_updates_per_s": 50.0, **RATIO},
        {"model": "small_cnn", "processes": 4, "updates_per_s": 100.0, "torch_updates_per_s": 50.0, **RATIO},
    ],
    "prediction": [
        {"ranks": 2, "mbit": 200, "wall": "yes", "error": "-1.5 %", "predicted_error": "-2.5 %"},
        {"ranks": 4, "mbit": 1000, "wall": "yes", "error": "+0.5 %", "predicted_error": "+1.5 %"},
        {"ranks": 4, "mbit": 5000, "wall": "no", "error": "-30.0 %", "predicted_error": "-30.0 %"},
    ],
}  # fmt: skip
PLACE = "before\n<!-- speed: made by x -->\n<!-- end of speed -->\nafter\n"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with made-up figures of all benchmarks."""
    for name, rows in ROWS.items():
        record = {"machine": MACHINE, "git_commit": "0123456789abcdef", "options": {"repeats": 3}, "rows": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    return tmp_path


def test_every_benchmark_is_run_kept_and_shown(kept: Path) -> None:
    assert set(ROWS) == set(report.TABLE) >= set(run_all.OPTIONS)
    text = report.with_table(PLACE, report.load(kept))
    for cell in (
        "| ring against gloo's all-reduce, 2 ranks, 1,000 elements | 2.5 (2.25-2.75) |",
        "| ring on `process_group` | 1 (1-1) |",
        "| ring against Open MPI's all-reduce, 4 ranks, 1,000 elements | 1.2 (1.1-1.3) |",
        "| ring on `mpi` | 0.9 (0.8-1) |",
        "| naive all-reduce | 60 µs |",
        "| synchronous server against `gloo`, 1, 2 workers, 5.8M-parameter MLP | 2.5 (2.25-2.75), 2.5",
        "| start: `first run` | 5.00 s; 2.5 (2.25-2.75) times that of `import torch` |",
        "201 MB, 200 MB",
        "| virtual time: a message of a ring of 16, 256 ranks | 30, 41 µs |",
        "256 ranks, 130,560 messages | 5.3 s |",
        "held back by 1 Gbit/s, `shared_memory`, 10 to 20 ms | 1.010-1.020 times what",
        "2, 4 ranks, 200, 1000, 5000 Mbit/s, 2 cases limited by the link | -1.5 to +0.5 % |",
        "about as many, by a threshold from a sample, 5.8 million elements, one core | 2.5 (2.25-2.75)",
        "| `topk` | 12.0 ms, 2.0 ms, 2 %, 0.8 |",
        "cut to 224, one rank by itself | 200 images/s |",
        "| the same with 1, 2 worker processes | 500, 500 images/s; 2.5 (2.25-2.75), 2.5 (2.25-2.75)",
        "| the same with 1 threads of DALI | 500 images/s; 2.5 (2.25-2.75) |",
        "twelve equal layers, 2 ranks, 10 Gbit/s | 2.5 (2.25-2.75); communication hidden: 40 % at 10 Gbit/s |",
        "the CNN, 2 ranks, 10 Gbit/s | 2.5 (2.25-2.75); communication hidden: too little to tell |",
        "both against DDP, the MLP | 1.4 (1.3-1.5), 1.2 (1.1-1.3) |",
        "against torch's own, small cnn, 1, 4 processes | 2.5 (2.25-2.75), 2.5 (2.25-2.75)",
        "Abacus, 2 cores, torch 2.0, Python 3.11; code at 0123456789.",
    ):
        assert cell in text
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_a_number_that_is_edited_by_hand_is_not_what_the_generator_makes(kept: Path) -> None:
    text = report.with_table(PLACE, report.load(kept))
    edited = text.replace("2.5 (2.25", "2.9 (2.25", 1)
    assert edited != text
    assert report.with_table(edited, report.load(kept)) == text


def test_the_readme_shows_the_committed_figures() -> None:
    folder = report.KEPT / "benchmarks"
    if not any(folder.glob("*.json")):
        pytest.skip("python -m benchmarks.run_all has not been run yet")
    text = report.README.read_text(encoding="utf-8")
    assert report.with_table(text, report.load(folder)) == text, "python -m benchmarks.report does so"


def test_figures_that_are_missing_damaged_or_of_two_machines_are_refused(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"benchmarks\.run_all"):
        report.load(tmp_path / "nothing")
    updated = json.loads((kept / "link.json").read_text()) | {"machine": MACHINE | {"platform": "Linux-7"}}
    (kept / "link.json").write_text(json.dumps(updated))
    assert "link" in report.load(kept), "a new kernel does not make another machine"
    other = json.loads((kept / "memory.json").read_text()) | {"machine": MACHINE | {"cores": 4}}
    (kept / "memory.json").write_text(json.dumps(other))
    with pytest.raises(UsageError, match="not all figures are of one machine"):
        report.load(kept)
    (kept / "memory.json").write_text("[]")
    with pytest.raises(UsageError, match=r"memory\.json: not the figures"):
        report.load(kept)


def test_a_benchmark_that_fails_is_told_and_the_others_are_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_all, "TABLE", {"no_such": None, "networks": None})
    with pytest.raises(RunFailed, match="1 of 2 benchmarks failed: no_such"):
        run_all.main(run_all.Settings(str(tmp_path)))
