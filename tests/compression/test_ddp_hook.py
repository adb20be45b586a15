"""The codecs as a hook of DistributedDataParallel: it trains as the ring with the same codec, and continues."""

import copy
import dataclasses
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from gradwire import compression
from gradwire.baselines.ring_all_reduce_builtin import join
from gradwire.compression import CODECS, Codec, Layout, NoCodec, Setting, TopK
from gradwire.compression.coding import CodecFactory
from gradwire.compression.ddp_hook import CodecState, codec_hook
from gradwire.core.records.errors import UsageError
from gradwire.core.transports.base import Transport
from strategies import Replica, RingAllReduce
from tests.ranks import LIMIT, launch, outcome

STEPS, BATCH, MOMENTUM = 8, 6, 0.9
STEPS_OF_EPOCH = 3
WANTED = {"density": 0.25, "bucket": 8}
SMALL = {
    name: kind(**{field.name: WANTED[field.name] for field in dataclasses.fields(kind) if field.name in WANTED})
    for name, kind in CODECS.items()
} | {"dgc": compression.DGC(density=0.05)}  # it sends less in each epoch
# The hook gives each parameter other random numbers.
SEEDED = (compression.QSGD, compression.RandomK, compression.PowerSGD)
ROUNDED = {"fp16": 3e-4, "bf16": 3e-3}
X = torch.randn(STEPS, 3, BATCH, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X @ torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).argmax(-1)


class Model(nn.Module):
    """Its layers are named in another order than they are used: DDP's first buckets are not its later ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(7, 3)
        self.scale = nn.Parameter(torch.ones(1))
        self.first = nn.Linear(5, 7)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.nothing = nn.Parameter(torch.ones(0))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)) * self.scale) + self.nothing.sum()


class OneParameter(nn.Linear):
    """A ring's codec of it can have the random numbers of the hook's."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(5, 3, bias=False, dtype=torch.float64)


# What a rank does


def in_group(transport: Transport, check: Callable[..., Any], *args: Any) -> Any:
    """Call `check(transport, *args)` in a process group of all ranks."""
    join(transport, "gloo")
    result = check(transport, *args)
    transport.barrier()
    dist.destroy_process_group()
    return result


def run(check: Callable[..., Any], n: int, *args: Any) -> list[Any]:
    return launch(in_group, n, check, *args, timeout=LIMIT)


class Ddp:
    """A model in DDP with the hook, and what it has seen."""

    def __init__(
        self, codec: Codec | None, group: dist.ProcessGroup | None = None, model: nn.Module | None = None
    ) -> None:
        self.module = model or Model()
        self.ddp = DistributedDataParallel(self.module, bucket_cap_mb=1e-4, process_group=group)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.3)
        self.buckets: list[tuple[tuple[int, ...], ...]] = []
        self.state = CodecState(codec or NoCodec(), self.ddp, group, seed=5, momentum=momentum_of(codec))
        if codec:
            self.ddp.register_comm_hook(self.state, self.hook)

    def hook(self, state: CodecState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.buckets.append(tuple(tuple(p.shape) for p in bucket.parameters()))
        return codec_hook(state, bucket)

    def train(self, rank: int, start: int = 0, stop: int = STEPS) -> list[torch.Tensor]:
        """Take steps with the batches of `rank`; return the parameters after each."""
        seen = []
        for i in range(start, stop):
            self.state.epoch = 1 + i // STEPS_OF_EPOCH
            self.optimizer.zero_grad()
            F.cross_entropy(self.ddp(X[i, rank]), Y[i, rank]).backward()
            self.optimizer.step()
            seen.append(trained(self.module))
        return seen


def momentum_of(codec: Codec | None) -> float:
    return MOMENTUM if codec and codec.carries_momentum else 0.0


def trained(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(p for p in model.parameters() if p.requires_grad).detach().clone()


def ring_codec(codec: Codec, hooked: CodecState) -> CodecFactory:
    """What makes the codec of a ring that is to do what the hook does."""
    (of_first, *_) = hooked.codecs.values()
    seed = of_first.setting.seed if isinstance(codec, SEEDED) else 5
    return CodecFactory(codec, Setting("tensor", seed, workers=dist.get_world_size(), momentum=momentum_of(codec)))


def both_ways(transport: Transport, names: list[str]) -> dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """For each codec the parameters after every step, by the hook and by the ring."""
    found: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for name in names:
        codec, theirs = SMALL[name], []
        kind = OneParameter if isinstance(codec, SEEDED) else Model
        hooked = Ddp(codec, model=kind())
        ours = hooked.train(transport.rank)
        assert kind is OneParameter or len(set(hooked.buckets)) > 2, "later buckets are not as the first ones"
        model, strategy = kind(), RingAllReduce()
        make = ring_codec(codec, hooked.state) if name != "none" else None
        strategy.start(Replica(model, transport), transport, lambda p: torch.optim.SGD(p, lr=0.3), codec=make)
        for i in range(STEPS):
            transport.recorder.epoch = 1 + i // STEPS_OF_EPOCH
            F.cross_entropy(model(X[i, transport.rank]), Y[i, transport.rank]).backward()
            strategy.step(BATCH)
            theirs.append(trained(model))
        strategy.finish()
        found[name] = ours, theirs
    return found


@cache
def of_three_ranks() -> list[dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]]:
    return run(both_ways, 3, list(SMALL))


def near(ours: list[torch.Tensor], theirs: list[torch.Tensor], rtol: float = 1e-10) -> bool:
    return all(torch.allclose(a, b, rtol=rtol, atol=rtol) for a, b in zip(ours, theirs, strict=True))


# The same training


@pytest.mark.xdist_group("ddp")  # they share their runs
@pytest.mark.parametrize("name", SMALL)
def test_every_step_is_that_of_the_ring_with_the_same_codec(name: str) -> None:
    """And replicas agree bit for bit."""
    first, *others = (rank[name][0] for rank in of_three_ranks())
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert near(first, of_three_ranks()[0][name][1], ROUNDED.get(name, 1e-10))
    assert (first[-1] - first[0]).abs().max() > 0.1, "it has moved"


# Its groups, its state, and what it refuses


def of_a_pair(transport: Transport) -> list[torch.Tensor]:
    """Ranks 0 and 1 train in a group of their own."""
    pair = dist.new_group([0, 1])
    return Ddp(SMALL["topk"], pair).train(transport.rank) if isinstance(pair, dist.ProcessGroup) else []


def test_it_works_in_the_group_that_it_is_given() -> None:
    """Two of three ranks train alone, as two do."""
    for pair, alone in zip(run(of_a_pair, 3), run(both_ways, 2, ["topk"]), strict=False):
        assert all(torch.equal(a, b) for a, b in zip(pair, alone["topk"][0], strict=True))


def resumed(transport: Transport) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For each codec the last parameters when another model and state do the second half, and when none does."""
    rank, found = transport.rank, {}
    for name in ("topk", "dgc", "powersgd", "qsgd"):
        codec = SMALL[name]
        first = Ddp(codec)
        first.train(rank, 0, STEPS // 2)
        kept, of_optimizer = first.state.state_dict(), first.optimizer.state_dict()
        state, second = copy.deepcopy(kept), Ddp(codec, model=copy.deepcopy(first.module))
        first.train(rank, STEPS // 2, STEPS // 2 + 1)
        assert str(kept) == str(state), "what is trained later does not change it"
        second.optimizer.load_state_dict(of_optimizer)
        second.state.load_state_dict(kept)
        assert second.state.epoch == 1 + (STEPS // 2 - 1) // STEPS_OF_EPOCH
        found[name] = second.train(rank, STEPS // 2)[-1], Ddp(codec).train(rank)[-1]
    return found


def test_it_continues_from_its_state() -> None:
    """Bit for bit, where ranks add in an order of their own; DDP's first buckets may be summed in another order."""
    for rank in run(resumed, 3):
        for name, (second, whole) in rank.items():
            if SMALL[name].kind == compression.GATHERED:
                assert torch.equal(second, whole), name
            else:
                assert near([second], [whole], ROUNDED.get(name, 1e-10)), name


def in_two_ranks(transport: Transport) -> tuple[str, str]:
    """Check what needs a process group; return what is said of a gradient that is not finite."""
    state, other = Ddp(TopK()).state, CodecState(TopK(), nn.Linear(1, 1))
    for wrong in (*(Ddp(SMALL[name]).state for name in ("sign", "none", "qsgd")), other):
        refused = ("UsageError", "this state is of another codec or model; load one of the same codec and model")
        assert outcome(state.load_state_dict, wrong.state_dict()) == refused
    names = ["scale", "nothing", "last.weight", "last.bias", "first.weight", "first.bias"]
    assert [codec.layout.names for codec in state.codecs.values()] == [(name,) for name in names]
    pairs = CodecState(TopK(), [("a", nn.Parameter(torch.ones(2)))], seed=1)
    assert [codec.layout for codec in pairs.codecs.values()] == [Layout(("a",), ((2,),))]
    states = [CodecState(compression.QSGD(), Model(), seed=seed) for seed in (0, 1)]
    seeds = {codec.setting.seed for state in states for codec in state.codecs.values()}
    assert len(seeds) == 2 * len(names), "each parameter has random numbers of its own"
    unknown = DistributedDataParallel(Model())
    unknown.register_comm_hook(other, codec_hook)
    kind, text = outcome(F.cross_entropy(unknown(X[0, 0]), Y[0, 0]).backward)
    assert kind == "UsageError"
    assert "is not in the CodecState; make it from the model with which the hook is registered" in text
    with pytest.raises(UsageError, match=r"momentum=0.9: topk does not carry it; give it to the optimizer"):
        CodecState(TopK(), Model(), momentum=0.9)
    with pytest.raises(UsageError, match=r"--density 2: must be above 0"):
        CodecState(TopK(density=2), Model())
    infinite = Model()
    infinite.scale.data.fill_(float("inf"))
    found: tuple[str, str] = outcome(Ddp(TopK(), model=infinite).train, transport.rank)
    return found


def test_each_parameter_has_a_codec_of_its_own_and_what_does_not_fit_is_refused() -> None:
    for kind, text in run(in_two_ranks, 2):
        assert kind == "RunFailed"
        assert re.match(r"the gradient of (first|last|scale)\S* has the value (nan|-?inf), and", text)


# The numbers of a mean


def means(transport: Transport) -> list[torch.Tensor]:
    """Means of two vectors each, of which rank k has its part."""
    k = transport.rank
    found: list[torch.Tensor] = []
    for codec in (compression.Float16(), NoCodec(), TopK(density=1.0), compression.Blosc(level=9)):
        pair = [("a", nn.Parameter(torch.zeros(40))), ("b", nn.Parameter(torch.zeros(3)))]
        state = CodecState(codec, pair)
        vectors = [torch.arange(40.0) * k if k else torch.ones(40), torch.tensor([60000.0, 1.0, -3.0 * k])]
        before = [vector.clone() for vector in vectors]
        found += state.mean([state.codec_of(p) for _, p in pair], vectors)
        assert all(torch.equal(*two) for two in zip(vectors, before, strict=True)), "what came in is as it was"
    return found


def test_a_mean_of_float16_codes_is_divided_before_it_is_added_and_codes_may_have_any_length() -> None:
    """Of 60000 and 60000; and of codes, one of which compresses to a third of the other."""
    expected = [0.5 * (torch.ones(40) + torch.arange(40.0)), torch.tensor([60000.0, 1.0, -1.5])]
    for found in run(means, 2):
        for i, vector in enumerate(found):
            assert torch.equal(vector, expected[i % 2])
