"""simulate.py as a user sees it: what it prints and writes, and one line for what is wrong."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from gradwire.virtual_time import simulate
from tests.runs import SMALL, said_by

LINK = ("--bandwidth", "1gbit", "--latency", "50us", "--compute", "3ms")
TRAINING = ("dataset", "model", "epochs")


def said(folder: Path, *arguments: str, data: Sequence[str] = TRAINING) -> tuple[int, str]:
    given = [f"--{name}={SMALL[name]}" for name in data]
    return said_by(lambda: simulate.main([*given, f"--results_dir={folder}", *arguments]))


def done(folder: Path, *arguments: str, data: Sequence[str] = TRAINING) -> str:
    """Return what such a command prints that ends well."""
    code, text = said(folder, *arguments, data=data)
    assert code == 0, text
    return text


def test_a_run_says_what_took_the_time_and_which_card_was_busiest(tmp_path: Path) -> None:
    text = done(tmp_path, "--strategy", "async_param_server", "--n_gpus", "4", "--run_name", "run", *LINK)
    assert "4 ranks in virtual time, in one process." in text
    assert "time virtual" in text
    assert "staleness" in text
    assert "busiest cards" in text
    assert "rank 0 sends" in text
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["transport"] == "simulated"
    assert facts["cluster"]["bandwidth"] == "1gbit"
    assert facts["cluster"]["phase_seconds"] == {"forward": pytest.approx(0.001), "backward": pytest.approx(0.002)}


def test_a_sweep_makes_a_table_and_a_figure(tmp_path: Path) -> None:
    text = done(tmp_path, "--strategy", "ring_all_reduce", *LINK,
                      "--sweep", "n_gpus=1,4", "--sweep", "bandwidth=1mbit,10gbit")  # fmt: skip
    (table,), (figure,) = tmp_path.glob("sweep-*.csv"), tmp_path.glob("sweep-*.png")
    assert figure.stat().st_size > 10_000
    assert str(table) in text
    rows = pd.read_csv(table)
    assert [tuple(row) for row in rows[["n_gpus", "bandwidth", "workers"]].values] == [
        (n, bandwidth, n) for n in (1, 4) for bandwidth in ("1mbit", "10gbit")
    ]
    speedup = {(n, bandwidth): value for n, bandwidth, value in rows[["n_gpus", "bandwidth", "speedup"]].values}
    assert speedup[1, "1mbit"] == pytest.approx(1, rel=0.05), "one worker sends nothing"
    assert speedup[4, "10gbit"] > 3
    assert speedup[4, "1mbit"] < speedup[4, "10gbit"]
    assert len(list(tmp_path.glob("*.json"))) == 4


def test_a_sweep_leaves_out_a_codec_that_a_strategy_cannot_carry(tmp_path: Path) -> None:
    text = done(tmp_path, "--n_gpus", "3", "--epochs", "1", "--compute", "1ms",
                "--sweep", "strategy=gossip,param_server", "--sweep", "codec=none,topk")  # fmt: skip
    rows = pd.read_csv(next(tmp_path.glob("sweep-*.csv")))
    carried = list(zip(rows["strategy"], rows["codec"].fillna("none"), strict=True))
    assert carried == [("gossip", "none"), ("param_server", "none"), ("param_server", "topk")]
    assert "left out at strategy=gossip, codec=topk: --codec topk: --strategy gossip cannot carry it" in text


def test_a_sweep_of_seeds_shows_means_and_ranges_and_of_strategies_which_batches_differ(tmp_path: Path) -> None:
    text = done(tmp_path, "--n_gpus", "3", "--epochs", "1", "--compute", "1ms", "--sweep", "seed=0,1",
                "--sweep", "strategy=ring_all_reduce,param_server")  # fmt: skip
    rows = pd.read_csv(next(tmp_path.glob("sweep-*.csv")))
    assert list(rows["seed"]) == [0, 0, 1, 1]
    for strategy, scores in rows.groupby("strategy")["test_accuracy"]:
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [strategy]]
        assert f"{scores.mean():.4g} ({scores.min():.4g} to {scores.max():.4g})" in line
    assert "128 in param_server; 192 in ring_all_reduce. Give all of them --global_batch_size 192." in text
    fair = done(tmp_path, "--n_gpus", "3", "--epochs", "1", "--compute", "1ms", "--global_batch_size", "192",
                "--sweep", "strategy=ring_all_reduce,param_server")  # fmt: skip
    assert "Give all" not in fair


def test_what_was_to_happen_after_the_end_changes_nothing(tmp_path: Path) -> None:
    given = ("--strategy", "easgd", "--n_gpus", "3", *LINK, "--bandwidth", "100kbit")
    busy = []
    for name, more in (("none", ()), ("late", ("--kill", "1@50s-60s"))):
        text = done(tmp_path, *given, "--run_name", name, *more)
        busy.append(text[text.index("busiest cards") :])
    assert busy[0] == busy[1]
    assert float(busy[0].splitlines()[1].split()[-1]) > 1, "percent of the time, not of 50 seconds"
    done(tmp_path, *given, "--kill", "1@10ms-60s")  # it would return when nobody is left
    text = done(tmp_path, "--strategy", "async_param_server", "--n_gpus", "4", "--epochs", "1",
                      "--compute", "10ms", "--kill", "1@3600s", "2@15ms", "3@15ms-16ms")  # fmt: skip
    assert "\ndied           rank 2; the others went on\n" in text, "rank 3 has returned"
    assert "\nnot killed     rank 1: the run had ended before 3600 virtual s\n" in text
    assert text.count("not killed") == 1


TRAINED: list[tuple[tuple[str, ...], str]] = [
    (("--device", "cuda"), "--device cuda: a simulation computes on the CPU"),
    (("--strategy", "async_param_server", "--restarts", "1"), "--restarts: in virtual time give --kill"),
    (("--strategy", "inconsistent_reads", "--n_gpus", "3"), "--strategy inconsistent_reads: needs shared memory"),
    (("--strategy", "param_server", "--sweep", "n_gpus=1,2"), "--sweep, at n_gpus=1: --n_gpus 1: param_server"),
    (("--sweep", "n_gpus=2,,4"), "--sweep n_gpus=2,,4: must be NAME=VALUE,VALUE,..."),
    (("--sweep", "sweep=a=1"), "--sweep sweep=a=1: sweep cannot be varied"),
    (("--sweep", "train_size=64,99999999"), "--sweep, at train_size=99999999: --train_size"),
    (("--run_name", "one", "--sweep", "n_gpus=2,3"), "--run_name: every run of a sweep has files of its own"),
    (("--kill", "1@1ms"), "--kill: ring_all_reduce cannot lose a worker"),
    (("--n_gpus", "100000000"), "--n_gpus 100000000: needs about"),
]
TIMED: list[tuple[tuple[str, ...], str]] = [
    (("--steps", "3"), "--steps: of what is only timed"),
    (("--parameters", "7e9", "--steps", "0"), "--steps 0: must be from 1"),
    (("--parameters", "7e9", "--sweep", "epochs=1,2"), "--sweep, at epochs=1: --epochs 1: nothing is trained"),
    (("--device", "meta", "--dataset", "mnist"), "--dataset mnist: nothing is trained"),
    (("--layers", "3"), "--layers 3: of --parameters, which is missing"),
    (("--fits_gb", "80"), "--fits_gb 80: of --parameters, or of a --model on --device meta"),
    (("--parameters", "7e9", "--fits_gb", "nan"), "--fits_gb nan: must be above 0"),
    (("--parameters", "7e9", "--fits_gb", "9", "--sweep", "n_gpus=2,3"), "--sweep, at n_gpus=2: --n_gpus 2: --fits_gb"),
    (("--parameters", "7e9", "--fits_gb", "9", "--strategy", "hogwild"), "--strategy hogwild: needs shared memory"),
]


@pytest.mark.parametrize(
    ("arguments", "message", "data"), [*((*case, TRAINING) for case in TRAINED), *((*case, ()) for case in TIMED)]
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], message: str, data: tuple[str, ...]
) -> None:
    code, text = said(tmp_path, "--compute", "1ms", *arguments, data=data)
    assert code == 2, text
    assert text.startswith(f"error: {message}"), text
    assert text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# Steps that are only timed


def test_steps_of_a_large_model_are_timed(tmp_path: Path) -> None:
    text = done(tmp_path, "--strategy", "sharded_ring", "--n_gpus", "16", "--parameters", "7e9",
                       "--bandwidth", "400gbit", "--latency", "0s", "--compute", "0.4s", data=())  # fmt: skip
    seconds = 0.4 + 2 * 15 / 16 * 28e9 / 50e9 * 1514 / 1448
    assert f"seconds a step  {seconds:.6g}, of which 0.4 are computing" in text
    assert "7e+09 parameters (28 GB)" in text
    assert "busiest cards" in text
    assert list(tmp_path.iterdir()) == [], "nothing is recorded"


def test_the_smallest_number_of_ranks_that_fit(tmp_path: Path) -> None:
    text = done(tmp_path, "--parameters", "7e9", "--layers", "32", "--fits_gb", "80", "--sweep",
                      "strategy=ring_all_reduce,fully_sharded,dgs", "--sweep", "momentum=0.9,0.5", data=())  # fmt: skip
    rows = [line.split() for line in text.splitlines()]
    assert rows[:4] == [
        ["strategy", "momentum=0.9", "momentum=0.5"],
        ["ring_all_reduce", "never", "never"],
        ["fully_sharded", "2", "2"],
        ["dgs", "-", "-"],
    ]
    text = done(tmp_path, "--optimizer", "adam", "--parameters", "13e9", "--layers", "40", "--fits_gb", "80",
                      "--sweep", "strategy=sharded_ring,sharded_gradients,fully_sharded", data=())  # fmt: skip
    found = [tuple(line.split()) for line in text.splitlines()[1:4]]
    assert found == [("sharded_ring", "never"), ("sharded_gradients", "7"), ("fully_sharded", "3")], "as the page says"
    assert list(tmp_path.iterdir()) == [], "nothing is recorded"
