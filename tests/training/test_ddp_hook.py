"""The codecs as a hook of DistributedDataParallel: it trains as the ring with the same codec."""

import copy
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from compression import CODECS, GATHERED, Code, Codec, Layout, Setting
from compression.base import Linear
from compression.blosc import Blosc
from compression.dgc import DGC
from compression.fp16 import Float16
from compression.none import NoCodec
from compression.powersgd import PowerSGD
from compression.qsgd import QSGD
from compression.random_k import RandomK
from compression.topk import TopK
from records.errors import UsageError
from strategies import Replica
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.common.coding import CodecFactory
from tests.ranks import LIMIT, launch, outcome
from tests.runs import ROOT
from training.ddp_hook import CodecState, codec_hook
from transports.base import Transport

EXAMPLES = ROOT / "docs" / "compression.md"  # the page whose block of Python is run
STEPS, BATCH, MOMENTUM = 8, 6, 0.9
STEPS_OF_EPOCH = 3
WANTED = {"density": 0.25, "bucket": 8}
SMALL = {
    name: kind(**{field.name: WANTED[field.name] for field in dataclasses.fields(kind) if field.name in WANTED})
    for name, kind in CODECS.items()
} | {"dgc": DGC(density=0.05)}  # it sends less in each epoch
SETTING = Setting()
SEEDED = (QSGD, RandomK, PowerSGD)  # their random numbers are other ones for each parameter
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


# What a rank does


def in_group(transport: Transport, folder: str, check: Callable[..., Any], *args: Any) -> Any:
    """Call `check(transport, *args)` in a process group of all ranks."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=transport.rank, world_size=transport.world_size,
        timeout=timedelta(seconds=LIMIT),
    )  # fmt: skip
    result = check(transport, *args)
    transport.barrier()
    dist.destroy_process_group()
    return result


def run(check: Callable[..., Any], n: int, *args: Any) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        return launch(in_group, n, folder, check, *args, timeout=LIMIT)


class Ddp:
    """A model in DDP with the hook, and what it has seen."""

    def __init__(
        self, codec: Codec | None, group: dist.ProcessGroup | None = None, model: nn.Module | None = None
    ) -> None:
        self.module = model or Model()
        self.ddp = DistributedDataParallel(self.module, bucket_cap_mb=1e-4, process_group=group)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.3)
        self.buckets: list[tuple[tuple[int, ...], ...]] = []
        self.state: CodecState | None = None
        if codec:
            self.state = CodecState(codec, self.ddp, group, seed=5, momentum=momentum_of(codec))
            self.ddp.register_comm_hook(self.state, self.hook)

    def hook(self, state: CodecState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.buckets.append(tuple(tuple(p.shape) for p in bucket.parameters()))
        return codec_hook(state, bucket)

    def step(self, i: int, rank: int) -> torch.Tensor:
        """Take step `i` with the batch of `rank`; return the parameters."""
        if self.state:
            self.state.epoch = 1 + i // STEPS_OF_EPOCH
        self.optimizer.zero_grad()
        F.cross_entropy(self.ddp(X[i, rank]), Y[i, rank]).backward()
        self.optimizer.step()
        return trained(self.module)


def momentum_of(codec: Codec) -> float:
    return MOMENTUM if codec.carries_momentum else 0.0


def trained(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(p for p in model.parameters() if p.requires_grad).detach().clone()


@dataclasses.dataclass(kw_only=True)
class EachTensor(Codec):
    """One codec for each tensor, started as the hook's are."""

    each: list[Codec]

    kind = GATHERED
    values = "0"

    def start(self, layout: Layout, like: torch.Tensor, setting: Setting = SETTING) -> None:
        super().start(layout, like, setting)
        for codec, name, shape in zip(self.each, layout.names, layout.shapes, strict=True):
            codec.start(Layout((name,), (shape,)), like, codec.setting)

    def encode(self, vector: torch.Tensor) -> Code:
        codes = [codec.encode(vector[where]).data for codec, where in zip(self.each, self.layout.slices, strict=True)]
        assert [code.nbytes for code in codes] == [sum(codec.count()) for codec in self.each]
        self.dtypes = [code.dtype for code in codes]
        return Code(torch.cat([code.view(torch.uint8) for code in codes]))

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        codes = data.split([int(sum(codec.count())) for codec in self.each])
        pairs = zip(self.each, codes, self.dtypes, strict=True)
        vector = torch.cat([codec.decode(code.clone().view(dtype)) for codec, code, dtype in pairs])
        return vector if out is None else out.copy_(vector)


@dataclasses.dataclass(kw_only=True)
class EachMean(Linear, EachTensor):
    """Likewise, where they are linear."""

    def reduce(self, vector: torch.Tensor) -> Iterator[torch.Tensor]:
        for codec, where in zip(self.each, self.layout.slices, strict=True):
            assert isinstance(codec, Linear)
            yield from codec.reduce(vector[where])


@dataclasses.dataclass(kw_only=True)
class EachSum(EachTensor):
    """Likewise, where their codes are added; all are of one dtype."""

    kind: ClassVar[str] = "dense"

    def encode(self, vector: torch.Tensor) -> Code:
        return Code(super().encode(vector).data.view(vector.dtype))

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().decode(data.view(torch.uint8), out)


def ring_codec(codec: Codec, hooked: CodecState) -> CodecFactory:
    """What makes the codec of a ring that is to do what the hook does."""

    def make(layout: Layout, like: torch.Tensor, rank: int, sends: bool) -> Codec:
        ours = list(hooked.codecs.values())
        made: Codec = dataclasses.replace(codec)
        if isinstance(codec, SEEDED):
            each: list[Codec] = []
            for one in ours:
                each.append(dataclasses.replace(codec))
                each[-1].setting = one.setting
            kind = EachMean if isinstance(codec, Linear) else EachTensor if codec.kind == GATHERED else EachSum
            made = kind(each=each)
        made.start(layout, like, Setting("tensor", 5, rank, dist.get_world_size(), momentum_of(codec), sends))
        return made

    return make


def both_ways(transport: Transport, names: list[str]) -> dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """For each codec the parameters after every step, by the hook and by the ring."""
    found = {}
    for name in names:
        codec = SMALL[name]
        hooked = Ddp(codec)
        ours = [hooked.step(i, transport.rank) for i in range(STEPS)]
        assert len(set(hooked.buckets)) > 2, "there are several buckets, and later ones are not as the first"
        assert hooked.state
        model, strategy = Model(), RingAllReduce()
        make = ring_codec(codec, hooked.state) if name != "none" else None
        strategy.start(Replica(model, transport), transport, lambda p: torch.optim.SGD(p, lr=0.3), codec=make)
        theirs = []
        for i in range(STEPS):
            transport.recorder.epoch = 1 + i // STEPS_OF_EPOCH
            F.cross_entropy(model(X[i, transport.rank]), Y[i, transport.rank]).backward()
            strategy.step(BATCH)
            theirs.append(trained(model))
        strategy.finish()
        found[name] = ours, theirs
    plain = Ddp(None)
    found["plain"] = [plain.step(i, transport.rank) for i in range(STEPS)], []
    return found


@cache
def of_three_ranks() -> list[dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]]:
    return run(both_ways, 3, list(SMALL))


def near(ours: list[torch.Tensor], theirs: list[torch.Tensor], rtol: float = 1e-10) -> bool:
    return all(torch.allclose(a, b, rtol=rtol, atol=rtol) for a, b in zip(ours, theirs, strict=True))


# The same training

GROUPED = pytest.mark.xdist_group("ddp")  # they share their runs


@GROUPED
@pytest.mark.parametrize("name", SMALL)
def test_every_step_is_that_of_the_ring_with_the_same_codec(name: str) -> None:
    """And replicas agree bit for bit."""
    first, *others = (rank[name][0] for rank in of_three_ranks())
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert near(first, of_three_ranks()[0][name][1], ROUNDED.get(name, 1e-10))
    assert (first[-1] - first[0]).abs().max() > 0.1, "it has moved"


@GROUPED
def test_a_codec_changes_the_steps_and_without_one_it_is_plain_ddp() -> None:
    found = of_three_ranks()[0]
    assert near(found["none"][0], found["plain"][0], 1e-14)
    for name in SMALL:
        assert near(found[name][0], found["plain"][0]) == (name in ("none", "blosc")), name


# What else it must do


def others(transport: Transport) -> dict[str, Any]:
    """One result of each kind that needs a process group."""
    rank = transport.rank
    found: dict[str, Any] = {}
    pair = dist.new_group([0, 1])
    if rank < 2:
        assert isinstance(pair, dist.ProcessGroup)
        group = Ddp(TopK(density=0.25), pair)
        found["of a pair"] = [group.step(i, rank) for i in range(STEPS)]
    whole = {name: Ddp(codec) for name, codec in SMALL.items()}
    ends = {name: [one.step(i, rank) for i in range(STEPS)][-1] for name, one in whole.items()}
    for name, codec in SMALL.items():
        half = Ddp(codec)
        for i in range(STEPS // 2):
            half.step(i, rank)
        assert half.state
        kept = half.state.state_dict()
        state = copy.deepcopy(kept)
        optimizer = half.optimizer.state_dict()
        second = Ddp(codec, model=copy.deepcopy(half.module))
        half.step(STEPS // 2, rank)
        second.optimizer.load_state_dict(optimizer)
        assert second.state
        second.state.load_state_dict(kept)
        assert second.state.epoch == 1 + (STEPS // 2 - 1) // STEPS_OF_EPOCH
        found[f"resumed {name}"] = [second.step(i, rank) for i in range(STEPS // 2, STEPS)][-1], ends[name]
        assert str(kept) == str(state), "what is trained later does not change it"
    wrong = Ddp(TopK())
    assert wrong.state
    for name in ("sign", "none", "qsgd"):
        found[f"state of {name}"] = outcome(wrong.state.load_state_dict, Ddp(SMALL[name]).state.state_dict())  # type: ignore[union-attr]
    other = CodecState(TopK(), nn.Linear(1, 1))
    found["state of another model"] = outcome(wrong.state.load_state_dict, other.state_dict())
    found["names"] = [codec.layout.names for codec in wrong.state.codecs.values()]
    pairs = CodecState(TopK(), [("a", nn.Parameter(torch.ones(2)))], seed=1)
    found["named parameters"] = [codec.layout for codec in pairs.codecs.values()]
    seeds = [
        [codec.setting.seed for codec in CodecState(QSGD(), Model(), seed=seed).codecs.values()] for seed in (0, 1)
    ]
    found["seeds"] = len({seed for of_state in seeds for seed in of_state})
    unknown = DistributedDataParallel(Model())
    unknown.register_comm_hook(other, codec_hook)
    found["another model"] = outcome(F.cross_entropy(unknown(X[0, 0]), Y[0, 0]).backward)
    infinite = Ddp(TopK())
    with torch.no_grad():
        infinite.module.scale.fill_(float("inf"))  # type: ignore[operator]
    found["infinite"] = outcome(infinite.step, 0, rank)
    return found


@cache
def what_else() -> list[dict[str, Any]]:
    return run(others, 3)


@GROUPED
def test_it_works_in_the_group_that_it_is_given() -> None:
    """Two of three ranks train alone, as two do."""
    pair, alone = what_else(), run(both_ways, 2, ["topk"])
    for rank in (0, 1):
        assert all(torch.equal(a, b) for a, b in zip(pair[rank]["of a pair"], alone[rank]["topk"][0], strict=True))


@GROUPED
@pytest.mark.parametrize("name", SMALL)
def test_it_continues_from_its_state(name: str) -> None:
    """Bit for bit, where ranks add in an order of their own; DDP's first buckets may be summed in another order."""
    for rank in what_else():
        resumed, whole = rank[f"resumed {name}"]
        if SMALL[name].kind == GATHERED:
            assert torch.equal(resumed, whole)
        else:
            assert near([resumed], [whole], ROUNDED.get(name, 1e-10))


@GROUPED
def test_a_state_of_something_else_is_refused() -> None:
    found = what_else()[0]
    refused = ("UsageError", "this state is of another codec or model; load one of the same codec and model")
    for name in ("state of sign", "state of none", "state of qsgd", "state of another model"):
        assert found[name] == refused, name


@GROUPED
def test_each_trainable_parameter_has_a_codec_with_its_name() -> None:
    found = what_else()[0]
    names = ["scale", "nothing", "last.weight", "last.bias", "first.weight", "first.bias"]
    assert found["names"] == [(name,) for name in names]
    assert found["named parameters"] == [Layout(("a",), ((2,),))]


@GROUPED
def test_each_parameter_has_random_numbers_of_its_own() -> None:
    assert what_else()[0]["seeds"] == 2 * 6


@GROUPED
def test_a_gradient_that_is_not_finite_names_its_tensor() -> None:
    for rank in what_else():
        kind, text = rank["infinite"]
        assert kind == "RunFailed"
        assert re.match(r"the gradient of (first|last|scale)\S* has the value (nan|-?inf), and", text)


@GROUPED
def test_a_state_of_another_model_is_said_to_be_one() -> None:
    kind, text = what_else()[0]["another model"]
    assert kind == "UsageError"
    assert "is not in the CodecState; make it from the model with which the hook is registered" in text


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UsageError, match=r"momentum=0.9: topk does not carry it; give it to the optimizer"):
        CodecState(TopK(), Model(), momentum=0.9)
    with pytest.raises(UsageError, match=r"--density 2: must be above 0"):
        CodecState(TopK(density=2), Model())


# The numbers of a mean


def means(transport: Transport) -> list[torch.Tensor]:
    """Means of two vectors each, of which rank k has its part."""
    k = transport.rank
    found: list[torch.Tensor] = []
    for codec in (Float16(), NoCodec(), TopK(density=1.0), Blosc(level=9)):
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


# The page


def test_the_example_of_the_page_runs_as_printed(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", EXAMPLES.read_text(encoding="utf-8"), re.DOTALL)
    assert example.count("\n") < 40
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy ([\d.]+)", done.stdout)
    assert found, done.stdout
    assert min(map(float, found)) > 0.8
