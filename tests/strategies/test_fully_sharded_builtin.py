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
from fully_sharded_builtin import BuiltinFullySharded
from records.errors import RunFailed, UsageError
from strategies import FullySharded, Strategy
from strategies.common.blocks import Freed
from strategies.common.builtin import replica_of
from strategies.common.replica import trained
from tests.ranks import LIMIT, launch
from tests.runs import made
from tests.strategies.loops import OPTIMIZERS
from transports.base import Transport
from workloads.gpt import GPT

STEPS = 3
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(mlp, (1, 2, 2), 11, width=8),
    "gpt": partial(GPT, (5,), 11, layers=3, width=8, heads=2),
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    list(model.parameters())[2].requires_grad_(False)
    return model


def batch_of(name: str, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of 2, 3 or 4 samples: ranks have unequal numbers."""
    random, n = torch.Generator().manual_seed(10 * step + rank), 2 + (rank + step) % 3
    x = torch.randint(11, (n, 5), generator=random)
    return (x, x.roll(1, 1)) if name == "gpt" else (x[:, 1:].double(), x[:, 0])


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def losses(transport: Transport, strategy: Strategy, name: str, pieces: int) -> list[Any]:
    """The loss of this rank in each step, and the x of each and of the end."""
    replica = replica_of(strategy, model_of(name), transport, transport.world_size)
    strategy.start(replica, transport, OPTIMIZERS["adam"], clip_norm=0.1)
    found = []
    for step in range(STEPS):
        parts = [batch_of(name, step, rank) for rank in range(transport.world_size)]
        x, y = parts[transport.rank]
        for piece in range(pieces):
            replica.begin_piece(len(x), sum(len(part) for part, _ in parts), is_last=piece == pieces - 1)
            if piece == pieces - 1:
                strategy.begin_step(len(x))
            loss = loss_of(replica.module, x, y)
            replica.backward(loss / pieces)
        assert all(isinstance(p, Freed) for p in trained(replica.model)), "between two passes"
        strategy.step(len(x))
        found += [loss.item(), strategy.model().tolist()]
    strategy.finish()
    assert torch.cat([p.detach().flatten() for p in trained(replica.model)]).tolist() == found[-1]
    state = strategy.descent.optimizer.state.values()
    found += [strategy.state_bytes, sum(t.numel() * t.element_size() for of in state for t in of.values())]
    replica.close()
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pieces", [1, 2])
def test_it_takes_the_steps_of_fully_sharded_and_of_one_process(name: str, pieces: int) -> None:
    ours, theirs = (
        launch(losses, 2, kind(), name, pieces, timeout=LIMIT) for kind in (FullySharded, BuiltinFullySharded)
    )
    model = model_of(name)
    optimizer = OPTIMIZERS["adam"]([*trained(model)])
    for step in range(STEPS):
        parts = [batch_of(name, step, rank) for rank in range(2)]
        losses_of_ranks = [loss_of(model, *part) for part in parts]
        x, y = map(torch.cat, zip(*parts, strict=True))
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        nn.utils.clip_grad_norm_(trained(model), 0.1)
        optimizer.step()
        whole = torch.cat([p.detach().flatten() for p in trained(model)])
        for rank in range(2):
            for found in (ours[rank], theirs[rank]):
                assert found[2 * step] == pytest.approx(losses_of_ranks[rank].item(), rel=1e-10)
                x = torch.tensor(found[2 * step + 1], dtype=torch.float64)
                torch.testing.assert_close(x, whole, rtol=1e-10, atol=1e-12)
    for *_, nbytes, of_whole in theirs:
        assert 0.4 * of_whole < nbytes < 0.6 * of_whole


def tied(input_shape: tuple[int], n_classes: int) -> nn.Module:
    """Two of its layers share a matrix."""
    model = nn.Sequential(nn.Linear(input_shape[0], 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, n_classes))
    model[2].weight = model[1].weight
    return model


TIED = {"model": f"{__name__}:tied"}


def test_bytes_are_those_of_each_gathering_and_reduction(tmp_path: Path) -> None:
    """Of 2 -> 4 -> 4 -> 4 -> 2 the first two layers are blocks; the rest stays gathered between the two passes."""
    builtin = BuiltinFullySharded(block_modules="0,3")
    facts = made(tmp_path, builtin, n_gpus=2, epochs=1, accumulate=3, **TIED)
    in_blocks, rest, steps = 4 * (12 + 10), 4 * (16 + 4 + 4), 190 // 32 + 1
    assert facts["bytes_sent"] == 2 * steps * (3 * (2 * in_blocks + rest) + in_blocks + rest) / 2
    assert facts["bytes"].startswith("from formula")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (TIED, "--block_modules: fully_sharded_builtin takes no parameters that are in several"),
        ({"optimizer": "adafactor"}, "--optimizer: fully_sharded_builtin cuts tensors"),
        ({"optimizer": "muon"}, "--optimizer: fully_sharded_builtin cuts tensors"),
        ({"hashes": True}, "--hashes: no rank of fully_sharded_builtin has all of x"),
    ],
    ids=str,
)
def test_what_fully_shard_cannot_do_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, RunFailed), match=message):
        made(tmp_path, "fully_sharded_builtin", n_gpus=2, **changes)
    assert not list(tmp_path.glob("run*"))
