"""Any optimizer of torch on one vector, and which of them may see it in parts; schedules of the learning rate."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.factories import is_flat
from gradwire.core.training.optimizers import OPTIMIZERS, SCHEDULES, factory, schedule
from strategies import OptimizerFactory

ELEMENTWISE = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "radam", "adamax", "adadelta", "asgd", "rprop")
WHOLE = ("adafactor", "muon")
REFUSED = ("lbfgs", "sparseadam")  # of those that this torch has


def made(name: str) -> OptimizerFactory:
    return factory(name, 0.1, 0.9, 0.0, ())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_is_known_for_what_it_is(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(UsageError, match=rf"^--optimizer {name}: does not work on one vector"):
            made(name)
    else:
        assert name in (*ELEMENTWISE, *WHOLE), "a new one of torch's: say which it is"
        assert is_flat(made(name)) is (name in ELEMENTWISE)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in (*REFUSED, "muon")])
def test_every_optimizer_takes_the_steps_of_torch_to_the_bit(name: str) -> None:
    ours, torchs = (torch.nn.Parameter(torch.linspace(-1, 2, 8)) for _ in range(2))
    make = made(name)
    optimizers = make([ours]), OPTIMIZERS[name]([torchs], **make.keywords)  # type: ignore[attr-defined]
    for step in range(5):
        for parameter, optimizer in zip((ours, torchs), optimizers, strict=True):
            optimizer.zero_grad()
            parameter.sub(step).square().sum().backward()
            optimizer.step()
        if step == 2:  # as after a resume
            optimizers[0].load_state_dict(deepcopy(optimizers[0].state_dict()))
    assert torch.equal(ours, torchs)
    assert str(optimizers[0].state_dict()) == str(optimizers[1].state_dict())


def test_momentum_is_that_of_sgd_and_the_first_beta_of_the_adam_family() -> None:
    vector = [torch.zeros(1, requires_grad=True)]
    assert factory("sgd", 0.1, 0.3, 0.0, ())(vector).defaults["momentum"] == 0.3
    for name in ("adam", "adamw", "nadam", "radam", "adamax"):
        assert factory(name, 0.1, 0.3, 0.0, ())(vector).defaults["betas"] == (0.3, 0.999)
    assert factory("adam", 0.1, 0.3, 0.0, ("betas=(0.5, 0.6)",))(vector).defaults["betas"] == (0.5, 0.6)


@given(st.sampled_from(SCHEDULES), st.integers(1, 10**7), st.floats(0, 1), st.floats(0, 2))
def test_a_factor_of_a_schedule_is_between_0_and_1(kind: str, total: int, warmup: float, done: float) -> None:
    assert 0 <= schedule(kind, total, round(warmup * total))(done * total) <= 1


def test_schedules_have_known_points() -> None:
    assert [schedule("constant", 100, 0)(x) for x in (0, 50, 100)] == [1, 1, 1]
    assert [schedule("step", 100, 0)(x) for x in (0, 49, 50, 75, 99)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert [schedule("cosine", 100, 0)(x) for x in (0, 50, 100)] == pytest.approx([1, 0.5, 0])
    assert [schedule("cosine", 110, 10)(x) for x in (0, 5, 10, 60, 110)] == pytest.approx([0, 0.5, 1, 0.5, 0])
