"""What a strategy is: the names that its author and its users see, and what it keeps."""

from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import pytest
import torch

from strategies import Cost, Replica, Strategy, Traits
from strategies.common.base import RunSize
from strategies.common.traits import NOTHING
from strategies.local_models.local_sgd import LocalSGD
from tests.strategies.loops import OPTIMIZERS
from tests.strategies.scripted import Scripted

MEMBERS = {
    *("name", "traits", "cost", "roles", "count_workers", "check"),  # before a run
    *("start", "setup", "join", "keep"),  # its beginning
    *("begin_step", "step", "serve", "finish", "steps_of_epoch", "model"),
    *("state_dict", "load_state_dict", "state_bytes"),
    *("replica", "transport", "descent", "coding", "seed"),
}


@dataclass(kw_only=True)
class Keeper(Strategy):
    """Keeps two things beside the model."""

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
        self.descent.step(self.replica.collect(), n_samples)


def started(strategy: Strategy, state: dict[str, Any] | None = None) -> Strategy:
    """The strategy alone on its transport."""
    transport = Scripted(0)
    model = torch.nn.Linear(2, 1)
    strategy.start(Replica(model, transport), transport, OPTIMIZERS["unit"], state=state)
    return strategy


def test_these_are_all_the_names_of_a_strategy() -> None:
    base = {name for name in dir(Strategy) if not name.startswith("_")} | {"name"}
    given = {name for name in vars(started(Keeper())) if not name.startswith("_")} - {"saved", "lost"}
    assert base | given == MEMBERS
    assert len(MEMBERS) == 24


def test_no_option_changes_the_traits(kind: type[Strategy]) -> None:
    assert "traits" not in {field.name for field in fields(kind)} | vars(kind()).keys()
    with pytest.raises(FrozenInstanceError):
        kind.traits.agree = False  # type: ignore[misc]


def test_what_is_kept_comes_back_and_is_copied() -> None:
    first = started(Keeper())
    assert isinstance(first, Keeper)
    first.saved.fill_(7)
    first.lost.fill_(7)
    state = first.state_dict()
    first.saved.fill_(8)
    again = started(Keeper(), state)
    assert isinstance(again, Keeper)
    assert (again.saved.tolist(), again.lost.tolist()) == ([7.0] * 3, [0.0] * 5)
    assert "lost" not in state
    assert first.state_bytes == (3 + 5) * 4, "both are memory"


def test_an_optimizer_is_kept_too() -> None:
    options = {"local_steps": 1, "outer_optimizer": "nesterov"}
    first = started(LocalSGD(**options))  # type: ignore[arg-type]
    before = first.state_bytes
    for parameter in first.replica.parameters:
        parameter.grad = torch.ones_like(parameter)
    first.step(4)
    nbytes = first.replica.x.nbytes
    assert (before, first.state_bytes) == (nbytes, 2 * nbytes), "x of the outer optimizer, and its momentum"
    state = first.state_dict()
    momentum = state["outer"]["state"][0]["momentum_buffer"].clone()
    first.step(4)
    again = started(LocalSGD(**options), state)  # type: ignore[arg-type]
    assert isinstance(again, LocalSGD)
    assert again.outer is not None
    assert torch.equal(again.outer.state_dict()["state"][0]["momentum_buffer"], momentum)


def test_a_default_is_that_of_most() -> None:
    assert Strategy.traits == Traits(asynchronous=False, agree=True, deaths="end", ranks=(1, None))
    Keeper().check(RunSize(4, 4, 1))
