"""The codecs as a hook of DistributedDataParallel: its groups, its state, what it refuses, and how it divides."""

import copy
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compression import GATHERED, Layout
from compression.blosc import Blosc
from compression.fp16 import Float16
from compression.none import NoCodec
from compression.qsgd import QSGD
from compression.topk import TopK
from records.errors import UsageError
from tests.ranks import outcome
from tests.training.test_ddp_hook import ROUNDED, SMALL, STEPS, STEPS_OF_EPOCH, Ddp, Model, X, Y, both_ways, near, run
from training.ddp_hook import CodecState, codec_hook
from transports.base import Transport


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
            if SMALL[name].kind == GATHERED:
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
    seeds = {codec.setting.seed for seed in (0, 1) for codec in CodecState(QSGD(), Model(), seed=seed).codecs.values()}
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
