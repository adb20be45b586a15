"""A resumed run ends where the uninterrupted one does, bit for bit."""

import multiprocessing
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from checkpoints import files
from checkpoints import folder as folder_of
from records.errors import RunFailed
from records.files import load_table
from tests.checkpoints.samples import BATCH_NORM, options, parameters
from tests.ranks import LIMIT, wait_until
from tests.runs import N_TRAIN, made, n_gpus_of, small
from training import run
from training.checks import resolve


@pytest.mark.parametrize(
    "strategy", ["ring_all_reduce", pytest.param("ring_all_reduce_builtin", marks=pytest.mark.exhaustive)]
)
def test_a_resumed_run_has_the_counts_among_the_buffers_and_counts_its_own_samples(
    tmp_path: Path, strategy: str
) -> None:
    """BatchNorm that takes the mean over all batches must know how many there were."""
    same: dict[str, Any] = {"model": "tests.workload:cumulative_batch_norm", "n_gpus": n_gpus_of(strategy, 2)}
    made(tmp_path, strategy, "whole", **same, checkpoint_every=5)
    path = folder_of.listed(tmp_path / "whole.checkpoints")[-1]
    resumed = made(tmp_path, strategy, "resumed", **same, resume=str(path))
    plan = resolve(small(tmp_path, strategy, **same)).plan(N_TRAIN)
    first = files.load_run(path)["step"]
    assert plan.n_steps < first < 2 * plan.n_steps, "in the last epoch"
    whole, table = (load_table(tmp_path / f"{name}.csv") for name in ("whole", "resumed"))
    for column in ("test_loss", "train_loss"):
        assert table[column].dropna().tolist() == whole[whole["epoch"] == 2][column].dropna().tolist()
    trained = sum(len(plan.batch(2, i)) for i in range(first - plan.n_steps, plan.n_steps))
    assert table[table["role"] == "worker"]["samples"].sum() == trained < N_TRAIN
    assert resumed["samples_per_s"] == pytest.approx(trained / table["epoch_s"].max())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ring_all_reduce", pytest.param("param_server", marks=pytest.mark.exhaustive)])
def test_killed_at_random_and_resumed_it_is_the_uninterrupted_run_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    same: dict[str, Any] = BATCH_NORM | {"epochs": 20, "lr_schedule": "cosine", "jitter": 0.5}
    run(options(tmp_path, strategy, **same, run_name="whole", checkpoint_every=0), quiet=True)
    chance = random.Random(strategy)
    again: dict[str, Any] = same | {"checkpoint_every": 1, "checkpoint_keep": 2}
    for _ in range(2):
        done = folder_of.listed(tmp_path / "c")
        step = int(done[-1].name[5:]) if done else 0
        killer = threading.Thread(target=_kill_ranks, args=(tmp_path / "c", step, chance.random() * 0.1))
        killer.start()
        with pytest.raises(RunFailed, match="SIGKILL"):
            run(options(tmp_path, strategy, **again, resume=str(tmp_path / "c") if done else None), quiet=True)
        killer.join()
        for path in folder_of.listed(tmp_path / "c"):
            for rank in files.load_run(path)["ranks"]:
                files.load_rank(path, rank)
    run(options(tmp_path, strategy, **again, resume=str(tmp_path / "c")), quiet=True)
    assert parameters(tmp_path) == parameters(tmp_path, "whole")
    assert len(folder_of.listed(tmp_path / "c")) == 2


def _kill_ranks(folder: Path, step: int, delay: float) -> None:
    """Kill all ranks `delay` seconds after the first checkpoint beyond `step`."""
    if wait_until(lambda: any(int(path.name[5:]) > step for path in folder_of.listed(folder)), LIMIT):
        time.sleep(delay)
        for process in multiprocessing.active_children():
            process.kill()
