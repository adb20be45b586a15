"""Dropout, of attention too: each rank draws its own; a run that is repeated, resumed or replayed draws the same."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.checkpoints.folder import listed
from gradwire.core.transports.base import Transport
from gradwire.results import load_table
from strategies import WorkerOptimizer
from tests.ranks import virtual_time
from tests.runs import strategy_of
from tests.selection import by_default
from tests.strategies.runs import made

GPT: dict[str, Any] = {
    "dataset": "tests.tasks:lines", "task": "language_model", "model": "gpt", "optimizer": "adamw", "lr": 0.01,
    "model_options": "layers=1,width=8,heads=2,dropout=0.1", "n_gpus": 3, "batch_size": 4,
}  # fmt: skip
IN_STEP = {"ring_all_reduce": {}, "sharded_ring": {}, "param_server": {}, "local_sgd": {"local_steps": 3}}


@pytest.mark.parametrize("amp", [pytest.param("none", marks=pytest.mark.exhaustive), "bf16"])
@pytest.mark.parametrize("name", by_default(("sharded_ring", "local_sgd"), IN_STEP))
def test_a_run_twice_resumed_and_in_virtual_time_draws_the_same(tmp_path: Path, name: str, amp: str) -> None:
    strategy = strategy_of(name, **IN_STEP[name])
    same = GPT | {"amp": amp, "checkpoint_every": 3, "checkpoint_keep": 100}
    virtual = made(tmp_path, "virtual", strategy, **same)["parameter_hash"]
    real = made(tmp_path, "real", strategy, real=True, **same)["parameter_hash"]
    assert virtual == real
    checkpoints = listed(tmp_path / "real.checkpoints")
    resumed = made(tmp_path, "resumed", strategy, **same, resume=str(checkpoints[1]))
    assert resumed["parameter_hash"] == virtual
    losses = (load_table(tmp_path / f"{run}.csv")["train_loss"].dropna() for run in ("real", "resumed"))
    assert len({tuple(last[-4:]) for last in losses}) == 1, "of the epoch too in which it was resumed"
    assert made(tmp_path, "other", strategy, **same | {"seed": 1})["parameter_hash"] != virtual


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("easgd", True),
        ("downpour", False),
        *(pytest.param(name, False, marks=pytest.mark.exhaustive) for name in ("easgd", "async_param_server")),
    ],
)
def test_a_replay_draws_the_same(tmp_path: Path, name: str, real: bool) -> None:
    strategy, same = strategy_of(name), GPT | {"amp": "bf16"}
    first = made(tmp_path, "first", strategy, real, slow=("1:3",), jitter=0.5, **same)
    again = made(tmp_path, "again", strategy, real, **same, replay=str(tmp_path / "first"))
    assert again["parameter_hash"] == first["parameter_hash"]


def masks(transport: Transport, anew: bool) -> list[list[float]]:
    """What a rank's dropout lets through in four steps; if `anew`, two of them after its state was taken elsewhere."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5))
    make = partial(WorkerOptimizer, model, transport, strategy_of("ring_all_reduce"), torch.optim.SGD)
    optimizer, seen = make(), []
    for step in range(4):
        if anew and step == 2:
            state = optimizer.state_dict()
            torch.rand(7 + transport.rank)
            optimizer = make(state=state)
        y = model(torch.ones(1, 4))
        seen.append((y[0] == 0).tolist())
        y.sum().backward()
        optimizer.step()
    optimizer.finish()
    return seen


def test_each_rank_draws_its_own_and_goes_on_from_its_state_in_a_loop_of_ones_own() -> None:
    first, second = (virtual_time(3).launch(masks, 3, anew, seed=5) for anew in (False, True))
    assert first == second
    drawn = [mask for rank in first for mask in rank]
    assert len({tuple(mask) for mask in drawn}) == len(drawn)
