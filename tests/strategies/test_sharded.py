"""ZeRO-2 and ZeRO-3: after every step the bits of a ring for each block, and close to the whole ring's."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.tensors import layout_of
from gradwire.core.transports.base import Transport
from gradwire.language.gpt import GPT
from gradwire.sharding.blocks import blocks_of
from strategies import FullySharded, Replica, RingAllReduce, ShardedGradients, Strategy
from strategies.collectives import ring_all_reduce
from tests.ranks import LIMIT, virtual_time
from tests.runs import made
from tests.strategies.loops import OPTIMIZERS

STEPS = 4


@dataclass(kw_only=True)
class RingPerBlock(RingAllReduce):
    """The reference: the gradient of each block goes round a ring of its own."""

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        for block in blocks_of(self.replica.model, self.replica.layout):
            total = ring_all_reduce(vector[block.part], self.transport, n)
        return total


# Models: what is fed to them, and what a step's pieces are


class Uneven(nn.Sequential):
    """First dimensions of 1, 2 and 7; fewer elements than ranks."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 1), nn.Linear(1, 2, bias=False), nn.Tanh(), nn.Linear(2, 7), nn.Linear(7, 3))


class Irregular(nn.Module):
    """Tied weights, a frozen parameter, BatchNorm, a block used twice, one not used in step 1; rank 0 skips uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))
        self.layers[3].weight = self.layers[0].weight
        self.layers[1].bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)
        self.skips: set[int] = set()  # uses of blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.tanh(self.embed(x)))
        for use, i in enumerate((0, 1, 3, 2, 1, 4)):
            if use not in self.skips:
                x = x + torch.tanh(self.layers[i](x))
        return self.head(x)


class Checkpointed(nn.Sequential):
    """Each layer is computed once more in the backward pass."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=False, early_stop=False)
        return x


MODELS: dict[str, Callable[[], nn.Module]] = {
    "uneven": Uneven,
    "irregular": Irregular,
    "checkpointed": Checkpointed,
    "gpt": partial(GPT, (5,), 11, layers=3, width=8, heads=2),
}


def batch_of(name: str, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Other samples for each rank and step, of sizes that differ."""
    random = torch.Generator().manual_seed(100 * step + rank)
    n = 2 + (rank + step) % 3
    if name == "gpt":
        tokens = torch.randint(11, (n, 6), generator=random)
        return tokens[:, :-1], tokens[:, 1:]
    x = torch.randn(n, 4, generator=random, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=random)


@dataclass(frozen=True)
class Case:
    strategy: Strategy
    model: str
    optimizer: str = "sgd"
    pieces: int = 1
    clip_norm: float = 0.0
    bf16: bool = False


def trained(transport: Transport, case: Case, state: Any = None, steps: range = range(STEPS)) -> list[Any]:
    """x after every step, and the state at the end."""
    torch.manual_seed(0)
    model = MODELS[case.model]().double()
    replica, strategy, found = Replica(model, transport), type(case.strategy)(**vars(case.strategy)), list[Any]()
    strategy.start(replica, transport, OPTIMIZERS[case.optimizer], RunSettings(case.clip_norm), state)
    for step in steps:
        model.skips = {1: {3}, 2: {3, 4} if transport.rank == 0 else set()}.get(step, set())  # type: ignore[assignment]
        x, y = batch_of(case.model, step, transport.rank)
        for piece in range(case.pieces):
            if piece == case.pieces - 1:
                strategy.begin_step(len(x))
            with torch.autocast("cpu", torch.bfloat16) if case.bf16 else nullcontext():
                loss = F.cross_entropy(model(x[:, ...]).flatten(0, -2), y.flatten()) / case.pieces
            replica.backward(loss)
        strategy.step(len(x))
        found.append(strategy.model().tolist())
    found.append(strategy.state_dict())
    strategy.finish()
    assert replica.x.tolist() == found[-2] == strategy.model().tolist()
    transport.barrier()
    return found


def in_virtual_time(N: int, *args: Any) -> list[Any]:
    return virtual_time(N).launch(trained, N, *args, timeout=LIMIT)


CASES: list[dict[str, Any]] = [
    *({"model": model} for model in MODELS),
    {"model": "irregular", "pieces": 3},
    {"model": "gpt", "optimizer": "adam", "bf16": True},
    {"model": "irregular", "optimizer": "muon"},
    {"model": "gpt", "clip_norm": 0.01},
]


@pytest.mark.parametrize(
    ("case", "N"),
    [*((case, 3) for case in CASES), *(({"model": "irregular"}, N) for N in (2, 5)), ({"model": "uneven"}, 1)],
)
def test_they_are_a_ring_for_each_block(case: dict[str, Any], N: int) -> None:
    expected, whole = (
        [rank[:STEPS] for rank in in_virtual_time(N, Case(kind(), **case))] for kind in (RingPerBlock, RingAllReduce)
    )
    for strategy in (ShardedGradients(), FullySharded(), FullySharded(prefetch=True)):
        found = [rank[:STEPS] for rank in in_virtual_time(N, Case(strategy, **case))]
        if "clip_norm" in case or "optimizer" in case:  # norms are added in another order; muon's cuts differ
            torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-10, atol=1e-12)
        else:
            assert found == expected, strategy
        torch.testing.assert_close(torch.tensor(found), torch.tensor(whole), rtol=1e-10, atol=1e-12)
        assert not torch.is_autocast_enabled("cpu"), "of one rank, another has it not"
        if N == 2 and not case.keys() & {"clip_norm", "optimizer"}:
            assert found == whole


# What cannot be done, and what is sent


def test_hashes_of_an_x_that_no_rank_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--hashes: no rank of fully_sharded has all of x while it trains"):
        made(tmp_path, FullySharded(), n_gpus=2, hashes=True)
    made(tmp_path, ShardedGradients(), n_gpus=2, hashes=True)


def pass_by(transport: Transport, model: nn.Module, names: str) -> None:
    strategy = FullySharded(block_modules=names)
    strategy.start(Replica(model, transport), transport, OPTIMIZERS["plain"])
    model(torch.zeros(2, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (Irregular().double(), "layers,layers.0", "--block_modules layers,layers.0: one lies in another"),
        (Irregular().double(), "blocks", "--block_modules blocks: the model has no such module; name modules"),
        (nn.MultiheadAttention(4, 1), "", "--block_modules: the model has no ModuleList or Sequential"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_told(model: nn.Module, names: str, message: str) -> None:
    with pytest.raises(RunFailed, match=f"^{re.escape(message)}.*$"):
        virtual_time(1).launch(pass_by, 1, model, names)


def test_a_freed_parameter_is_nan_and_an_error_names_it() -> None:
    with pytest.raises(RunFailed, match=r"linear\(\) reads layers\.0\.weight outside the passes of its block"):
        virtual_time(1).launch(pass_by, 1, Irregular().double(), "layers")  # which is not called as a whole
    virtual_time(1).launch(pass_by, 1, model := Irregular().double(), "")
    with torch._C.DisableTorchFunctionSubclass():
        assert model.head.weight.isnan().all()


def sent(transport: Transport, pieces: int) -> list[int]:
    """The bytes that this rank sends in each step."""
    model, found = MODELS["gpt"]().double(), []
    replica, strategy = Replica(model, transport), FullySharded()
    strategy.start(replica, transport, OPTIMIZERS["plain"])
    for step in range(STEPS):
        before = transport.bytes_sent.total()
        x, y = batch_of("gpt", step, transport.rank)
        for piece in range(pieces):
            if piece == pieces - 1:
                strategy.begin_step(len(x))
            replica.backward(F.cross_entropy(model(x).flatten(0, -2), y.flatten()))
        strategy.step(len(x))
        found.append(transport.bytes_sent.total() - before)
    strategy.finish()
    return found


@pytest.mark.parametrize("pieces", [1, 3])
def test_each_piece_gathers_twice_and_all_are_reduced_once(pieces: int) -> None:
    P = 8 * layout_of(MODELS["gpt"]()).n
    ranks = virtual_time(3).launch(sent, 3, pieces)
    assert [sum(step) for step in zip(*ranks, strict=True)] == [(1 + 2 * pieces) * 2 * P] * STEPS
