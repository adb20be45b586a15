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
from tests.checkpoints.samples import BATCH_NORM, options, parameters, start
from tests.ranks import LIMIT, wait_until
from tests.runs import N_TRAIN, SYNCHRONOUS, made, n_gpus_of, small
from training import run
from training.checks import resolve

__all__ = ["start"]


SMALL: dict[str, Any] = {
    "model": "tests.workload:batch_norm", "epochs": 3, "lr_schedule": "cosine", "warmup": 1.0, "checkpoint_every": 2,
    "checkpoint_keep": 100,
}  # fmt: skip


# Where workers may die, their buffers and random state are not kept: see tests of the servers.
@pytest.mark.parametrize("name", [name for name, one in SYNCHRONOUS.items() if not one.workers_may_die])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(tmp_path: Path, name: str) -> None:
    one, same = SYNCHRONOUS[name], SMALL | {"n_gpus": n_gpus_of(name, 2)}
    whole = made(tmp_path, one, "whole", **same)["parameter_hash"]
    found = folder_of.listed(tmp_path / "whole.checkpoints")
    last = 3 * resolve(small(tmp_path, one, **same)).plan(N_TRAIN).n_steps
    assert [files.load_run(path)["step"] for path in found] == list(range(2, last + 1, 2))
    for path in (found[0], found[len(found) // 2], found[-1]):  # in an epoch, at the end of one, at the very end
        resumed = made(tmp_path, one, "resumed", **(same | {"resume": str(path), "checkpoint_every": 0}))
        assert resumed["parameter_hash"] == whole


@pytest.mark.parametrize("strategy", ["ring_all_reduce", "param_server"])
def test_killed_at_random_and_resumed_it_is_the_uninterrupted_run_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    same: dict[str, Any] = BATCH_NORM | {"epochs": 40, "lr_schedule": "cosine", "jitter": 0.5}
    run(options(tmp_path, strategy, **same, run_name="whole", checkpoint_every=0), quiet=True)
    chance = random.Random(strategy)
    again: dict[str, Any] = same | {"checkpoint_every": 1, "checkpoint_keep": 2}
    for _ in range(4):
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
