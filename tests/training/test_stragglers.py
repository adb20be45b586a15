"""Stragglers on demand: as slow as they are told, in the records too, and never with another result."""

import contextlib
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training.straggler import Straggler

from param_server_builtin import BuiltinParamServer
from records.files import load_events, load_metadata
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import STRATEGIES, Strategy
from training import Options, cli, run, straggler

BUILTIN: dict[str, type[Strategy]] = {kind.name: kind for kind in (BuiltinParamServer, BuiltinRingAllReduce)}
KINDS: dict[str, type[Strategy]] = {**STRATEGIES, BuiltinRingAllReduce.name: BuiltinRingAllReduce}
CPU = torch.device("cpu")


class Time:
    """A clock that only work and sleep move on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def thread_time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(straggler, "time", time)
    return time


def stretches(time: Time, slow: Straggler, passes: int, seconds: float = 2.0) -> list[float]:
    """How many times its time each of so many passes took."""
    taken = []
    for _ in range(passes):
        start = time.now
        with slow.stretched():
            time.now += seconds
        taken.append((time.now - start) / seconds)
    return taken


def test_a_factor_sleeps_for_what_is_missing(time: Time) -> None:
    assert stretches(time, Straggler(5.0, 0.0, 0, CPU), 3) == [5.0] * 3
    assert time.slept == [8.0] * 3


def test_who_is_not_slow_does_not_sleep(time: Time) -> None:
    assert stretches(time, Straggler(1.0, 0.0, 0, CPU), 3) == [1.0] * 3
    assert time.slept == []


def test_jitter_only_lengthens_and_follows_its_seed(time: Time) -> None:
    sigma, n = 0.5, 2000
    taken = stretches(time, Straggler(1.0, sigma, 7, CPU), n)
    assert min(taken) >= 1
    slept, time.slept = time.slept, []
    stretches(time, Straggler(1.0, sigma, 7, CPU), n)
    assert time.slept == pytest.approx(slept)
    assert stretches(time, Straggler(1.0, sigma, 8, CPU), 9) != pytest.approx(taken[:9])
    z = [math.log(times) / sigma for times in taken]
    assert sum(z) / n == pytest.approx(math.sqrt(2 / math.pi), rel=0.05), "half-normal"
    assert sum(value * value for value in z) / n == pytest.approx(1, rel=0.1)
    both = stretches(time, Straggler(3.0, sigma, 7, CPU), n)
    assert both == pytest.approx([3 * times for times in taken])


def test_jitter_leaves_the_random_numbers_of_the_training_alone(time: Time) -> None:
    state = torch.get_rng_state()
    stretches(time, Straggler(2.0, 1.0, 0, CPU), 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_on_a_gpu_what_is_queued_counts(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[float] = []

    def finish(device: torch.device) -> None:
        time.now += sum(queued)
        queued.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", finish)
    monkeypatch.setattr(straggler, "clock", time.thread_time)
    with Straggler(3.0, 0.0, 0, torch.device("cuda")).stretched():
        queued.append(2.0)
    assert time.slept == [4.0]


def test_a_pass_that_fails_is_not_stretched(time: Time) -> None:
    with pytest.raises(ZeroDivisionError), Straggler(5.0, 0.0, 0, CPU).stretched():
        raise ZeroDivisionError
    assert time.slept == []


# In runs


def made(folder: Path, strategy: str, name: str, **changes: Any) -> dict[str, Any]:
    """The metadata of a run on two workers (or one)."""
    n_gpus = 1 if strategy == "single" else 2 + KINDS[strategy].roles(3).count("server")
    options: dict[str, Any] = {
        "dataset": "tests.workload:moons", "model": "tests.workload:batch_norm", "epochs": 2, "batch_size": 32,
        "lr": 0.05, "device": "cpu", "timeout": 60, "results_dir": str(folder), "run_name": name,
        "strategy": strategy, "n_gpus": n_gpus, "builtin": BUILTIN.get(strategy),
    }  # fmt: skip
    run(Options(**(options | changes)), quiet=True)
    return load_metadata(folder / f"{name}.json")


@pytest.mark.parametrize("strategy", [name for name, kind in KINDS.items() if not kind.own_pace])
def test_slowing_changes_no_number(tmp_path: Path, strategy: str) -> None:
    even = made(tmp_path, strategy, "even")
    last = len(even["roles"]) - 1
    slow = made(tmp_path, strategy, "slow", slow=(f"{last}:4",), jitter=0.3)
    assert slow["parameter_hash"] == even["parameter_hash"]
    assert slow["test_accuracy"] == even["test_accuracy"]
    assert (slow["options"]["slow"], slow["options"]["jitter"]) == ([f"{last}:4"], 0.3)


@pytest.mark.parametrize("strategy", ["none", "param_server", "async_param_server", BuiltinRingAllReduce.name])
def test_the_records_show_who_was_slow(tmp_path: Path, strategy: str) -> None:
    # So much to compute, and so slow, that a busy machine cannot make another rank slower.
    big = {"dataset": "digits", "model": "benchmarks.networks:mlp", "train_size": 160, "batch_size": 16, "epochs": 1}
    entry = made(tmp_path, strategy, "run", slow=("1:30",), **big)
    events = load_events(tmp_path / "run")
    # DDP waits for the others inside its backward pass, and in one forward pass.
    phases = ["forward"] if strategy in BUILTIN else ["forward", "backward"]
    spans = events[events["phase"].isin(phases)]
    passes = (spans["t1"] - spans["t0"]).groupby(spans["rank"]).median()
    assert list(passes.index) == [rank for rank, role in enumerate(entry["roles"]) if role == "worker"]
    assert passes.idxmax() == 1


def said(builtin: type[Strategy] | None, *arguments: str) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        code = cli.main("description", builtin, ["--device", "cpu", *arguments])
    return code, output.getvalue()


SERVED = ("--strategy", "param_server", "--n_gpus", "3")


@pytest.mark.parametrize(
    ("builtin", "arguments", "expected"),
    [
        (None, (*SERVED, "--slow", "0:5"), "--slow 0: not a rank that computes; those are 1, 2"),
        (None, (*SERVED, "--slow", "9:2"), "--slow 9: not a rank that computes; those are 1, 2"),
        (None, (*SERVED, "--slow", "1:2", "9:2"), "--slow 9: not a rank"),
        (None, (*SERVED, "--slow", "x:y"), "--slow x:y: must be RANK:FACTOR, such as 2:5"),
        (None, (*SERVED, "--slow", "1"), "--slow 1: must be RANK:FACTOR"),
        (None, (*SERVED, "--slow", "1:2:3"), "must be RANK:FACTOR"),
        (None, (*SERVED, "--slow", "1:inf"), "a factor from 1 to 1000"),
        (None, (*SERVED, "--jitter", "nan"), "--jitter nan: must be from 0 to 5"),
        (
            BuiltinRingAllReduce,
            ("--n_gpus", "2", "--slow", "9:2"),
            "--slow 9: not a rank that computes; those are 0, 1",
        ),
        (BuiltinParamServer, ("--n_gpus", "2", "--slow", "1:5"), "--slow: param_server_builtin is one process"),
        (BuiltinParamServer, ("--n_gpus", "2", "--jitter", "0.5"), "--jitter: param_server_builtin is one process"),
    ],
)
def test_who_cannot_be_slow_is_one_line(
    tmp_path: Path, builtin: type[Strategy] | None, arguments: tuple[str, ...], expected: str
) -> None:
    code, text = said(builtin, "--results_dir", str(tmp_path / "results"), *arguments)
    assert (code, text.count("\n")) == (2, 1)
    assert text.startswith("error: ")
    assert expected in text
    assert not (tmp_path / "results").exists()
