"""FSDP2 takes the steps of fully_sharded and of one process, and says what it cannot do."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.networks import mlp
from gradwire.baselines.fully_sharded_builtin import BuiltinFullySharded
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.strategy.replica import trained
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.transports.base import Transport
from gradwire.language.gpt import GPT
from gradwire.sharding.freed import Freed
from strategies import FullySharded, Strategy
from tests.ranks import LIMIT, launch
from tests.runs import made
from tests.strategies.loops import OPTIMIZERS
from tests.strategies.test_sharded import batch_of

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(mlp, (1, 2, 2), 3, width=8),
    "gpt": partial(GPT, (5,), 11, layers=3, width=8, heads=2),
}


def model_of(name: str) -> nn.Module:
    """In float64, with a frozen parameter."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    list(model.parameters())[2].requires_grad_(False)
    return model


def losses(model: nn.Module, name: str, step: int, ranks: range) -> torch.Tensor:
    """Of the samples or tokens of these ranks, of which each has another number."""
    x, y = map(torch.cat, zip(*(batch_of(name, step, rank) for rank in ranks), strict=True))
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten(), reduction="none")


def steps(transport: Transport, strategy: Strategy, name: str, pieces: int) -> list[tuple[float, list[float]]]:
    """In each step the loss of this rank, and x after it."""
    replica, found = strategy.make_replica(model_of(name), transport, 2), list[tuple[float, list[float]]]()
    strategy.start(replica, transport, OPTIMIZERS["adam"], RunSettings(clip_norm=0.1))
    for step in range(3):
        n, other = (len(batch_of(name, step, rank)[0]) for rank in (transport.rank, 1 - transport.rank))
        for last in (False, True)[-pieces:]:
            replica.begin_piece(n, n + other, last)
            if last:
                strategy.begin_step(n)
            loss = losses(replica.module, name, step, range(transport.rank, transport.rank + 1)).mean()
            replica.backward(loss / pieces)
        assert all(isinstance(p, Freed) for p in trained(replica.model)), "between two passes"
        strategy.step(n)
        found.append((loss.item(), strategy.model().tolist()))
    strategy.finish()
    assert torch.cat([p.detach().flatten() for p in trained(replica.model)]).tolist() == found[-1][1]
    assert 0.4 < strategy.state_bytes / (2 * 8 * len(found[-1][1])) < 0.7, "about half of Adam's state"
    replica.close()
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pieces", [1, 2])
def test_it_takes_the_steps_of_fully_sharded_and_of_one_process(name: str, pieces: int) -> None:
    runs = [launch(steps, 2, kind(), name, pieces, timeout=LIMIT) for kind in (FullySharded, BuiltinFullySharded)]
    model = model_of(name)
    optimizer = OPTIMIZERS["adam"]([*trained(model)])
    for step in range(3):
        expected = [losses(model, name, step, range(rank, rank + 1)).mean().item() for rank in range(2)]
        optimizer.zero_grad()
        losses(model, name, step, range(2)).mean().backward()
        nn.utils.clip_grad_norm_(trained(model), 0.1)
        optimizer.step()
        whole = [x for p in trained(model) for x in p.flatten().tolist()]
        for rank, loss in enumerate(expected):
            for run in runs:
                assert run[rank][step] == (pytest.approx(loss, rel=1e-10), pytest.approx(whole, rel=1e-10, abs=1e-12))


def tied(input_shape: tuple[int], n_classes: int) -> nn.Module:
    """Two of its layers share a matrix."""
    model = nn.Sequential(nn.Linear(*input_shape, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, n_classes))
    model[2].weight = model[1].weight
    return model


TIED: dict[str, Any] = {"model": f"{__name__}:tied", "n_gpus": 2, "epochs": 1}


def test_bytes_are_those_of_each_gathering_and_reduction(tmp_path: Path) -> None:
    """Of 2 -> 4 -> 4 -> 4 -> 2 the first and the last layer are blocks; the rest stays between the two passes."""
    facts = made(tmp_path, BuiltinFullySharded(block_modules="0,3"), train_size=160, accumulate=3, **TIED)
    blocks, rest = 4 * (2 * 4 + 4 + 4 * 2 + 2), 4 * (4 * 4 + 4 + 4)
    assert facts["bytes_sent"] == 2 * 5 * (3 * (2 * blocks + rest) + blocks + rest) / 2


REFUSED: dict[str, dict[str, Any]] = {
    "--block_modules: fully_sharded_builtin takes no parameters that are in several": {},
    "--optimizer: fully_sharded_builtin cuts tensors": {"optimizer": "adafactor"},
    "--hashes: no rank of fully_sharded_builtin has all of x": {"hashes": True},
    "--accumulate 3: .* with fully_sharded_builtin all need as many": {"accumulate": 3, "train_size": 37},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_cannot_do_is_refused(tmp_path: Path, message: str) -> None:
    with pytest.raises((UsageError, RunFailed), match=message):
        made(tmp_path, "fully_sharded_builtin", **TIED | REFUSED[message])
