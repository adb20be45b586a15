"""An updater by which a part of x takes its step before the others."""

from functools import partial
from typing import Any, TypeVar

import pytest
import torch

from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.factories import OptimizerFactory, by_name
from gradwire.core.strategy.updater import Updater
from strategies.local_models.part_updater import PartUpdater

Kind = TypeVar("Kind", bound=Updater)
SGD = partial(torch.optim.SGD, lr=0.1)


def make(kind: type[Kind], optimizer: OptimizerFactory = SGD, clip_norm: float = 0.0) -> tuple[torch.Tensor, Kind]:
    x = torch.zeros(6, dtype=torch.float64)
    return x, kind([x], optimizer, clip_norm, lambda processed: 1 / (1 + processed), Recorder())


@pytest.mark.parametrize("optimizer", [partial(torch.optim.Adam, lr=0.1), partial(torch.optim.SGD, lr=0.1, momentum=1)])
def test_a_part_may_take_its_step_before_the_others(optimizer: OptimizerFactory) -> None:
    (x, updater), (expected, whole) = make(PartUpdater, optimizer), make(Updater, optimizer)
    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]
    assert updater.has_parts
    updater.optimize(x, parts=parts)
    for step in range(4):
        gradient = torch.arange(1.0, 7.0, dtype=torch.float64) / (1 + step)
        before = x.clone()
        updater.step_part(parts[1], gradient, 8)
        assert ((x != before).nonzero().flatten().tolist()) == [2, 3, 4]
        updater.step(gradient, 8)
        whole.step(gradient, 8)
        assert torch.equal(x, expected)
    assert (updater.version, updater.samples) == (4, 32)


class Counting(torch.optim.SGD):
    """Divides the learning rate by how often it was called."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["calls"] = calls = self.param_groups[0].get("calls", 0) + 1
        self.param_groups[0]["lr"] = 0.1 / calls
        return super().step(closure)


def test_no_part_is_updated_first_where_the_norm_is_bounded_or_the_optimizer_counts_its_calls() -> None:
    assert not make(PartUpdater, clip_norm=1.0)[1].has_parts
    assert not make(PartUpdater, partial(Counting, lr=0.1))[1].has_parts
    assert not make(PartUpdater, by_name(lambda named: torch.optim.SGD(named, lr=0.1)))[1].has_parts
