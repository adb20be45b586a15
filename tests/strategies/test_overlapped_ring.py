"""The overlapped ring: its buckets, what of them goes round while the backward pass computes, and what that hides."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from gradwire import run as train
from gradwire.core.transports.base import Transport
from gradwire.virtual_time.cluster import Compute
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import OverlappedRing, RingAllReduce
from tests.ranks import run
from tests.runs import small
from tests.strategies.kinds import assert_same, on_ranks
from tests.strategies.loops import Rank, Task

N = 3
MODEL = "tests.strategies.test_overlapped_ring:eight_layers"
TINY = 1e-4  # MB: 104 bytes, 13 elements of float64; the model has 66


@pytest.mark.parametrize("bucket_mb", [TINY, 3e-4])
def test_however_g_is_cut_it_takes_the_steps_of_the_ring(bucket_mb: float) -> None:
    assert_same(Task(OverlappedRing(bucket_mb=bucket_mb), N, "adam"), Task(RingAllReduce(), N, "adam"), 1e-10)


# What is on its way when


class Watched(nn.Module):
    """Linear layers that tell when their gradients are computed, and what was sent by then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.sent: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def during_the_backward_pass(transport: Transport, announced: bool) -> list[int]:
    """How many messages this rank had sent when the gradients of each layer were there, the last layer's first."""
    torch.manual_seed(0)
    model = Watched()
    rank = Rank(transport, Task(OverlappedRing(bucket_mb=8e-5), N, "plain"), model)  # 80 bytes: a layer each
    for weight in [p for p in model.parameters() if p.dim() == 2]:
        weight.register_post_accumulate_grad_hook(lambda _: model.sent.append(transport.messages_sent.total()))
    before = transport.messages_sent.total()
    if announced:
        rank.strategy.begin_step(1)
    model(torch.ones(1, 4)).sum().backward()
    rank.strategy.step(1)
    rank.stop()
    transport.barrier()
    return [sent - before for sent in model.sent]


@pytest.mark.xdist_group("torchrun")
def test_buckets_are_sent_while_the_pass_computes() -> None:
    for sent in run("shared_memory", during_the_backward_pass, N, True):
        assert sent == sorted(sent)
        assert sent[-1] >= 3, "one message of each bucket but the last, at least, before the first layer's gradients"


@pytest.mark.xdist_group("torchrun")
def test_without_notice_all_is_sent_after_it() -> None:
    assert run("shared_memory", during_the_backward_pass, N, False) == [[0, 0, 0, 0]] * N


def test_gradients_that_never_come_hold_up_nothing() -> None:
    """A step in which rank 1 alone uses the second layer."""

    def step(rank: Rank) -> list[float]:
        model = rank.replica.model
        assert isinstance(model, nn.Sequential)
        rank.strategy.begin_step(1)
        x = model[0](torch.ones(1, 4))
        model[2](model[1](x) if rank.transport.rank == 1 else x).sum().backward()
        rank.strategy.step(1)
        return rank.x().tolist()

    task = Task(OverlappedRing(bucket_mb=8e-5), N, "plain")
    ranks = on_ranks(task, step, lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
    assert all(x == ranks[0] for x in ranks)


# In virtual time


def eight_layers(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Eight layers that are alike, and one of another size."""
    alike = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *alike, nn.Linear(64, n_classes))


def test_it_hides_what_it_can_and_says_how_much(tmp_path: Path) -> None:
    """The backward pass takes 20 ms, and the ring 21 of which most can be hidden, or 0.02."""
    found: dict[float, dict[str, pd.DataFrame]] = {}
    for bandwidth in (1e7, 1e10):
        for name, strategy in (("ring", RingAllReduce()), ("overlapped", OverlappedRing(bucket_mb=0.02))):
            options = small(tmp_path, strategy, n_gpus=4, run_name=f"{name} {bandwidth:g}", dataset="digits",
                            model=MODEL, batch_size=64, epochs=1, train_size=512)  # fmt: skip
            compute = Compute(options, {"forward": 0.01, "backward": 0.02, "update": 0.001})
            time = VirtualTime(OneSwitch(4, bandwidth, 1e-5), compute)
            found.setdefault(bandwidth, {})[name] = train(options, quiet=True, launcher=time.launcher())
    slow, fast = ({name: table["epoch_s"].max() for name, table in found[bandwidth].items()} for bandwidth in found)
    assert slow["overlapped"] < 0.85 * slow["ring"]
    assert fast["overlapped"] > 0.99 * fast["ring"], "nothing is to be hidden"
    hidden = found[1e7]["overlapped"]["hidden_communication"]
    assert hidden.between(0.5, 20 / 21).all(), "of what all buckets take, from the first one's start"
    assert found[1e7]["ring"]["hidden_communication"].isna().all()
