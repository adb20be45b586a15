"""Checkpoints and evaluate.py beside a training: each is scored once, and neither outlives or harms the other."""

import csv
import dataclasses
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from training.evaluator import Evaluator
from training.rank import build_model

import evaluate
from records.errors import RunFailed, UsageError
from records.files import load_table
from strategies import Replica
from tests.ranks import wait_until
from training import Options, checkpoints, launch, run
from transports.base import Transport
from workloads import datasets

ROOT = Path(__file__).parent.parent
LIMIT_S = 100
SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:linear", "n_gpus": 2, "epochs": 3, "batch_size": 16,
    "device": "cpu", "timeout": 30, "run_name": "run", "checkpoint_every": 3, "checkpoint_keep": 100,
}  # fmt: skip
DIGITS = {"dataset": "digits", "model": "mlp", "epochs": 2, "global_batch_size": 240, "strategy": "param_server"}
BATCH_NORM = {"model": "tests.workload:batch_norm", "n_gpus": 3, "strategy": "param_server"}


def options(folder: Path, **changes: Any) -> Options:
    return Options(**(SMALL | {"results_dir": str(folder), "checkpoint_dir": str(folder / "c")} | changes))


def arguments(one: Options) -> list[str]:
    """Return the command line of options."""
    changed = {name: value for name, value in one.recorded().items() if value != getattr(Options(), name)}
    switches = [f"--{name}" for name, value in changed.items() if value is True]
    return switches + [
        part
        for name, value in changed.items()
        if value is not True
        for part in (f"--{name}", *(value if isinstance(value, tuple) else (str(value),)))
    ]


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a script of ours in a session of its own; kill what is left of it at the end."""
    started = []

    def start(*line: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen([sys.executable, *line], cwd=ROOT, text=True, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def scores(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def steps(path: Path) -> list[int]:
    return [int(row["step"]) for row in scores(path)]


def evaluators() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "evaluate.py" in " ".join(child.cmdline())]


def parameters(folder: Path, name: str = "run") -> dict[str, str]:
    return json.loads((folder / f"{name}.json").read_text())["parameter_hash"]


def score_here(folder: Path, **settings: Any) -> None:
    threads = torch.get_num_threads()
    try:
        evaluate.main(evaluate.Settings(str(folder), **settings))
    finally:
        torch.set_num_threads(threads)


# Scoring


def test_started_first_it_scores_each_once_as_the_run_itself_does(tmp_path: Path, start: Callable[..., Any]) -> None:
    runs = {"digits": DIGITS, "batch norm": BATCH_NORM}
    processes = {name: start("evaluate.py", "--checkpoint_dir", str(tmp_path / name / "c")) for name in runs}
    for name, changes in runs.items():
        assert wait_until((tmp_path / name / "c").exists, LIMIT_S), "it waits for the training to begin"
        run(options(tmp_path / name, **changes), quiet=True)
    for name, process in processes.items():
        said, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (0, "")
        rows = scores(tmp_path / name / "c" / "evaluation.csv")
        assert [int(row["step"]) for row in rows] == list(range(3, 1 + (12 if name == "digits" else 18), 3))
        assert said.count("top-5") == len(rows)
        assert all(0 <= float(row["top1"]) <= float(row["top5"]) <= 1 for row in rows)
        table = load_table(tmp_path / name / "run.csv")
        own = table[table["test_loss"].notna()].set_index("step")
        ends = [row for row in rows if int(row["step"]) in own.index]
        assert len(ends) == len(own) > 1
        for row in ends:
            at = own.loc[int(row["step"])]
            assert float(row["loss"]) == pytest.approx(at["test_loss"], rel=1e-5)
            assert float(row["top1"]) == pytest.approx(at["test_accuracy"], abs=1e-9)
    assert max(float(row["top5"]) for row in scores(tmp_path / "digits" / "c" / "evaluation.csv")) > 0.9


class _Code:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['EXECUTED']}",)


def test_what_is_no_checkpoint_is_refused_and_the_others_are_scored(
    tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(options(tmp_path), quiet=True)
    torn, code, foreign, other, *rest = checkpoints.listed(tmp_path / "c")
    whole = (torn / "rank-1.pt").read_bytes()
    (torn / "rank-1.pt").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setenv("EXECUTED", str(tmp_path / "executed"))
    torch.save({"strategy": {"x": _Code()}, "position": {"step": 7}, "random": _Code()}, code / "rank-0.pt")
    (foreign / "run.json").write_text('{"format": 1, "step": "many"}')
    torch.save({"strategy": {"x": torch.zeros(3)}, "position": 0, "random": 0}, other / "rank-0.pt")
    (tmp_path / "c" / "step-elsewhere").mkdir()
    process = start("evaluate.py", "--checkpoint_dir", str(tmp_path / "c"))
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    lines = errors.splitlines()
    for line, path, reason in zip(
        lines, (torn, code, foreign, other), ("damaged", "foreign", "run.json", "not the state"), strict=False
    ):
        assert line.startswith(f"refused: {path}")
        assert reason in line
    assert lines[4:] == ["error: 4 of the checkpoints could not be scored"]
    assert steps(tmp_path / "c" / "evaluation.csv") == [15, 18] == [int(path.name[5:]) for path in rest]
    assert not (tmp_path / "executed").exists()


def test_started_again_it_goes_on_with_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "c" / "evaluation.csv"
    run(options(tmp_path), quiet=True)
    third = checkpoints.listed(tmp_path / "c")[2]
    for path in checkpoints.listed(tmp_path / "c")[3:]:
        shutil.rmtree(path)
    score_here(tmp_path / "c")
    assert steps(table) == [3, 6, 9]
    first = scores(table)
    run(options(tmp_path, resume=str(third), run_name="on"), quiet=True)
    capsys.readouterr()
    score_here(tmp_path / "c")
    assert capsys.readouterr().out.count("top-5") == 3, "those in the table are not scored again"
    assert steps(table) == [3, 6, 9, 12, 15, 18]
    assert scores(table)[:3] == first
    last = scores(table)[3:]
    for path in checkpoints.listed(tmp_path / "c")[3:]:  # gone back to the third, and on by another way
        shutil.rmtree(path)
    run(options(tmp_path, resume=str(third), run_name="on", clip_norm=0.001, epochs=2), quiet=True)
    score_here(tmp_path / "c")
    assert scores(table)[:3] == first
    assert steps(table) == [3, 6, 9, 12], "rows of the course that was left are gone"
    assert scores(table)[3]["loss"] != last[0]["loss"]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", ",".join(evaluate.COLUMNS) + "\n1,2\n", "\0\0", "\xff"])
def test_a_table_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    table = tmp_path / "scores.csv"
    table.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"^--output .*is no table of scores") as refused:
        score_here(tmp_path, output=str(table))
    assert "\n" not in str(refused.value)
    assert table.read_bytes() == text.encode("latin-1")


def test_no_training_and_no_place_to_write_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint_dir .*no training began there within --wait 0\.1 s"):
        score_here(tmp_path / "c", wait=0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^--checkpoint_dir: cannot write in"):
        score_here(tmp_path / "file")
    with (
        checkpoints.locked(tmp_path / "c" / ".evaluation.csv.lock", ""),
        checkpoints.in_training(tmp_path / "c"),
        pytest.raises(UsageError, match="another evaluate"),
    ):
        score_here(tmp_path / "c")


def save_on_the_server(transport: Transport, one: Options) -> None:
    model = build_model(one, datasets.load(one.dataset, "."))
    replica = Replica(model, transport)
    replica.b.fill_(1 + transport.rank)
    state = {"strategy": {"x": replica.x, "b": replica.b}, "position": {"step": 7}, "random": torch.zeros(1)}
    checkpoints.save(transport, one, 7, state, ranks=[0])


def test_a_checkpoint_of_the_server_alone_is_scored_with_its_buffers(tmp_path: Path) -> None:
    one = options(tmp_path, **BATCH_NORM).resolve()
    launch(save_on_the_server, 3, one, roles=one.roles)
    (path,) = checkpoints.listed(tmp_path / "c")
    assert sorted(file.name for file in path.iterdir()) == ["rank-0.pt", "run.json"]
    assert checkpoints.load_run(path)["ranks"] == [0]
    n = sum(p.numel() for p in build_model(one, datasets.load(one.dataset, ".")).parameters())
    checkpoints.check(dataclasses.replace(one, resume=str(path)), n)
    scorer = evaluate.Scorer(path)
    scorer.score(path)
    assert torch.cat([buffer.reshape(-1) for buffer in scorer.buffers]).eq(1).all()


# --evaluator


@pytest.mark.timeout(300)  # three times the start of a program
def test_a_killed_run_ends_its_evaluator_and_goes_on_to_the_same_end(tmp_path: Path, start: Callable[..., Any]) -> None:
    folder = tmp_path / "c"
    long = options(tmp_path, epochs=100_000, slow=("0:100",), checkpoint_every=10, checkpoint_keep=20, evaluator=True)
    training = start("train.py", *arguments(long))
    beside = start("evaluate.py", "--checkpoint_dir", str(folder), "--output", str(tmp_path / "beside.csv"))
    assert wait_until(lambda: bool(scores(folder / "evaluation.csv") and scores(tmp_path / "beside.csv")), LIMIT_S)
    (attached,) = (
        child
        for child in psutil.Process(training.pid).children()
        if "--attached" in child.cmdline()
    )  # fmt: skip
    training.kill()
    assert wait_until(lambda: not attached.is_running() or attached.status() == psutil.STATUS_ZOMBIE, 10)
    said, errors = beside.communicate(timeout=LIMIT_S)
    assert (beside.returncode, errors) == (0, "")
    assert "training has ended" in said
    last = int(checkpoints.listed(folder)[-1].name[5:])
    assert steps(tmp_path / "beside.csv")[-1] == last

    epochs = last // 6 + 2
    resumed = start("train.py", "--resume", str(folder), "--epochs", str(epochs), "--slow", "0:1", "--no_evaluator")
    _, errors = resumed.communicate(timeout=LIMIT_S)
    assert resumed.returncode == 0, errors
    score_here(folder)
    found = steps(folder / "evaluation.csv")
    assert found == sorted(set(found)), "each once"
    assert found[-1] == epochs * 6 // 10 * 10
    assert not [path for path in folder.iterdir() if path.name.startswith(".step")]
    run(options(tmp_path, epochs=epochs, run_name="whole", checkpoint_every=0), quiet=True)
    assert parameters(tmp_path) == parameters(tmp_path, "whole")


def test_an_interrupt_ends_the_evaluator_with_the_run(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: bool(evaluators()), LIMIT_S)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(options(tmp_path, epochs=100_000, evaluator=True), quiet=True)
    thread.join()
    assert evaluators() == []
    assert not checkpoints.is_training(tmp_path / "c")


def test_an_evaluator_that_fails_is_told_and_the_run_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c" / ".evaluation.csv.lock").mkdir(parents=True)  # so that it cannot start
    run(options(tmp_path, evaluator=True), quiet=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("warning: the evaluator failed (")
    assert said.err.count("\n") == 1
    assert parameters(tmp_path)


def test_an_evaluator_that_is_stopped_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpoints.in_training(tmp_path / "c"), Evaluator(options(tmp_path, evaluator=True)) as evaluator:
        evaluator.start()
        evaluators()[0].suspend()
        monkeypatch.setattr(evaluator, "_limit", 0.5)
        evaluator.finish(quiet=True)
    assert "has not answered for more than 0.5 s" in capsys.readouterr().err
    assert evaluators() == []


# The folder


def test_a_folder_of_another_run_is_refused_with_the_cure(tmp_path: Path) -> None:
    run(options(tmp_path), quiet=True)
    with pytest.raises(UsageError, match=rf"^--checkpoint_dir .*step-00000018 of another run.*--resume {tmp_path}/c"):
        run(options(tmp_path), quiet=True)
    first = checkpoints.listed(tmp_path / "c")[0]
    with pytest.raises(UsageError, match=r"^--resume .*later ones, up to step-00000018"):
        run(options(tmp_path, resume=str(first), run_name="on"), quiet=True)
    run(options(tmp_path, resume=str(first), run_name="on", checkpoint_dir=str(tmp_path / "d")), quiet=True)
    with pytest.raises(UsageError, match=r"^--checkpoint_dir .*of another run"):
        run(options(tmp_path, resume=str(first), run_name="on", checkpoint_dir=str(tmp_path / "d")), quiet=True)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "evaluation.csv").touch()
    with pytest.raises(UsageError, match=r"^--checkpoint_dir .*evaluation.csv of another run.*or delete it"):
        run(options(tmp_path, checkpoint_dir=str(tmp_path / "e")), quiet=True)
    checkpoints.check_folder(options(tmp_path, resume=str(tmp_path / "c"), epochs=5))


def test_one_run_at_a_time_writes_however_often_others_look(tmp_path: Path) -> None:
    looking = True

    def look() -> None:
        while looking:
            checkpoints.is_training(tmp_path)

    (tmp_path / ".step-00000002").mkdir()
    (tmp_path / ".step-00000001.gone").mkdir()
    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            with checkpoints.in_training(tmp_path):
                assert checkpoints.is_training(tmp_path)
                assert {path.name for path in tmp_path.iterdir()} == {".training"}, "what a killed run left is gone"
    finally:
        looking = False
        for thread in threads:
            thread.join()
    with (
        checkpoints.in_training(tmp_path),
        pytest.raises(UsageError, match="another run is writing there"),
        checkpoints.in_training(tmp_path),
    ):
        pass


def test_checkpoints_are_listed_by_their_step(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-00000002", "step-2", "step-x", "step-000000003"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    (tmp_path / "step-00000009").mkdir()
    names = [path.name for path in checkpoints.listed(tmp_path)]
    assert names == ["step-00000002", "step-99999999", "step-100000000"]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_by_name_and_leaves_the_whole_ones(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / ".step-00000006").write_text("in the way")
    with pytest.raises(RunFailed, match=r"cannot write the checkpoint .*step-00000006.*: File exists"):
        run(options(tmp_path), quiet=True)
    assert [path.name for path in checkpoints.listed(folder)] == ["step-00000003"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_full_disk_is_told_by_its_name() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        checkpoints._write(Path("/dev/full"), b"x")


@pytest.mark.parametrize("strategy", ["ring_all_reduce", "param_server"])
def test_killed_at_random_and_resumed_it_is_the_uninterrupted_run_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    same: dict[str, Any] = BATCH_NORM | {"strategy": strategy, "epochs": 40, "lr_schedule": "cosine", "jitter": 0.5}
    run(options(tmp_path, **same, run_name="whole", checkpoint_every=0), quiet=True)
    chance = random.Random(strategy)
    again: dict[str, Any] = same | {"checkpoint_every": 1, "checkpoint_keep": 2}
    for _ in range(4):
        done = checkpoints.listed(tmp_path / "c")
        step = int(done[-1].name[5:]) if done else 0
        killer = threading.Thread(target=_kill_ranks, args=(tmp_path / "c", step, chance.random() * 0.1))
        killer.start()
        with pytest.raises(RunFailed, match="SIGKILL"):
            run(options(tmp_path, **again, resume=str(tmp_path / "c") if done else None), quiet=True)
        killer.join()
        for path in checkpoints.listed(tmp_path / "c"):
            for rank in checkpoints.load_run(path)["ranks"]:
                checkpoints.load_rank(path, rank)
    run(options(tmp_path, **again, resume=str(tmp_path / "c")), quiet=True)
    assert parameters(tmp_path) == parameters(tmp_path, "whole")
    assert len(checkpoints.listed(tmp_path / "c")) == 2


def _kill_ranks(folder: Path, step: int, delay: float) -> None:
    """Kill all ranks `delay` seconds after the first checkpoint beyond `step`."""
    if wait_until(lambda: any(int(path.name[5:]) > step for path in checkpoints.listed(folder)), LIMIT_S):
        time.sleep(delay)
        for process in multiprocessing.active_children():
            process.kill()


def test_under_torchrun_rank_0_holds_the_folder_and_starts_the_evaluator(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    one = options(tmp_path, n_gpus=None, run_name=None, checkpoint_dir=None, evaluator=True)
    line = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", *arguments(one))
    process = start(*line)
    said, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    (folder,) = tmp_path.glob("*.checkpoints")
    assert [int(path.name[5:]) for path in checkpoints.listed(folder)] == list(range(3, 19, 3))
    assert steps(folder / "evaluation.csv") == list(range(3, 19, 3))
    assert re.search(r"^scores +.*evaluation.csv$", said, re.MULTILINE)
