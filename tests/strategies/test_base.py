"""What a strategy is: its name, its line in the table, a step that collects, and what it keeps."""

import dataclasses
import importlib
import inspect
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import strategies
from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.traits import NOTHING, Cost
from gradwire.core.transports.base import Transport
from strategies import STRATEGIES, Replica, RingAllReduce, Strategy
from tests.ranks import virtual_time
from tests.strategies.kinds import fit, start
from tests.strategies.loops import OPTIMIZERS


@dataclass(kw_only=True)
class Own(Strategy):
    """A strategy of a user's own,
    described in two lines.

    And more.
    """

    often: int = 50
    """How often."""

    def cost(self, kind: str | None = None) -> Cost:
        """Nothing is sent."""
        return Cost(worker=NOTHING)

    def setup(self) -> None:
        """Keep a tensor that checkpoints hold, and one that they do not."""
        self.saved, self.lost = torch.zeros(3), torch.zeros(5)
        self.keep("saved", self.saved)
        self.keep("lost", self.lost, saved=False)

    def step(self, n_samples: int) -> None:
        """x <- optimizer(x, g)."""
        self.updater.step(self.replica.collect(), n_samples)


def test_every_module_with_a_strategy_is_in_the_table() -> None:
    found = set()
    root = Path(strategies.__file__).parent
    for path in root.rglob("[!_]*.py"):
        module = importlib.import_module(".".join(("strategies", *path.relative_to(root).with_suffix("").parts)))
        own = [
            value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        if any(issubclass(value, Strategy) and not inspect.isabstract(value) for value in own):
            found.add(path.stem)
    assert found == set(STRATEGIES)


# A step that forgets the gradient


class Forgets(RingAllReduce):
    """A ring that is given whatever lies in g."""

    def step(self, n_samples: int) -> None:
        """As the ring's, without `collect`."""
        n = self.all_reduce(self.replica.g.mul_(n_samples), n_samples)
        self.updater.step(self.replica.g.div_(n), n)
        self.replica.zero_grad()


def steps(transport: Transport, strategy: Strategy, number: int) -> int:
    """Take so many steps in a loop of its own; return the updates."""
    model, strategy = nn.Linear(2, 1), dataclasses.replace(strategy)
    strategy.start(Replica(model, transport), transport, OPTIMIZERS["unit"])
    for _ in range(number):
        model(torch.ones(4, 2)).sum().backward()
        strategy.step(4)
    strategy.finish()
    return strategy.updater.version


def test_a_step_that_does_not_collect_also_a_later_one_is_named_in_one_line() -> None:
    said = r"^rank [01] \(worker\): Forgets\.step\(\) did not call self\.replica\.collect\(\), .*\Z"
    with pytest.raises(RunFailed, match=said):
        virtual_time(2).launch(steps, 2, Forgets(), 1)
    assert virtual_time(1).launch(steps, 1, RingAllReduce(), 2) == [2]

    class Once(RingAllReduce):
        def step(self, n_samples: int) -> None:
            if not self.updater.version:
                super().step(n_samples)

    with pytest.raises(RunFailed, match=r"Once\.step\(\) did not call"):
        virtual_time(1).launch(steps, 1, Once(), 2)


# All of the module's state


class Mixed(nn.Sequential):
    """Trained and frozen parameters, buffers of all kinds: other ones on each rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(OrderedDict(trained=nn.Linear(3, 2), frozen=nn.Linear(2, 2).half(), norm=nn.BatchNorm1d(2)))
        for parameter in self[1].parameters():
            parameter.requires_grad_(False)
        self.register_buffer("mask", torch.tensor([rank == 0, True, False]))
        self.register_buffer("phase", torch.full((2,), rank + 1j))
        self.register_buffer("nothing", torch.zeros(0, dtype=torch.int64))
        with torch.no_grad():
            for tensor in (*self.parameters(), self[2].running_mean, self[2].num_batches_tracked):
                assert isinstance(tensor, torch.Tensor)
                tensor.fill_(rank + 1)


def state_at_the_start(transport: Transport, strategy: Strategy) -> dict[str, list[Any]]:
    model = Mixed(transport.rank)
    strategy = dataclasses.replace(strategy)
    strategy.start(Replica(model, transport), transport, partial(torch.optim.SGD, lr=0.1))
    transport.barrier()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_all_ranks_begin_with_all_of_rank_0s_module(kind: type[Strategy]) -> None:
    strategy = kind()
    if kind.name == "dgs":  # whose optimizer has momentum
        return
    expected = {name: tensor.tolist() for name, tensor in Mixed(0).state_dict().items()}
    assert start(kind, state_at_the_start, fit(kind, 3), strategy) == [expected] * fit(kind, 3)


# What it keeps


def kept_and_loaded(transport: Transport) -> tuple[Own, dict[str, Any], Own]:
    """A strategy with 7 in its tensors, which then become 8, its state with 7, and one that begins with this."""

    def started(state: dict[str, Any] | None = None) -> Own:
        (strategy := Own()).start(Replica(nn.Linear(2, 1), transport), transport, OPTIMIZERS["unit"], state=state)
        return strategy

    first = started()
    first.saved.fill_(7)
    first.lost.fill_(7)
    state = first.state_dict()
    first.saved.fill_(8)
    return first, state, started(state)


def test_what_is_kept_comes_back_and_is_copied() -> None:
    ((first, state, again),) = virtual_time(1).launch(kept_and_loaded, 1)
    assert (again.saved.tolist(), again.lost.tolist()) == ([7.0] * 3, [0.0] * 5)
    assert "lost" not in state
    assert first.state_bytes == (3 + 5) * 4, "both are memory"
