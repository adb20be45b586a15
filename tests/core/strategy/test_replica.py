"""The replica: views of flat vectors that stay views whatever the user's loop does; parameters of other memory."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.core.strategy.tensors import float_buffers, parameters_from, trained
from gradwire.core.transports.base import Transport
from strategies import Replica
from tests.core.transports.samples import world
from tests.ranks import LIMIT, launch


class Tied(nn.Module):
    """A tied, a frozen, an unused parameter; a float and an integer buffer."""

    frozen: nn.Parameter
    unused: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.b(self.a(x)))


@pytest.fixture
def alone() -> Iterator[Transport]:
    """The transport of a rank without peers."""
    with world(1) as (transport,):
        yield transport


def test_ties_frozen_parameters_and_buffers(alone: Transport) -> None:
    model = Tied()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    replica = Replica(model, alone)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    replica.x.zero_()
    replica.b.fill_(5)
    assert replica.x.numel() == 9 + 2 + 6  # tied once, unused, 3 + 3 of BatchNorm
    assert replica.b.numel() == 6  # running mean and variance, but not num_batches_tracked
    assert not any(p.any() for p in trained(model)), "views"
    assert all((b == 5).all() for b in float_buffers(model)), "views"
    assert model.a.weight is model.b.weight
    assert model.frozen.tolist() == [1.0] * 4


def test_collect_finds_the_gradient_whatever_became_of_grad(alone: Transport) -> None:
    model = nn.Linear(2, 1, bias=False)
    replica = Replica(model, alone)

    def backward() -> None:
        (model(torch.tensor([[1.0, 2.0]])) * 3).sum().backward()

    backward()
    assert replica.collect().tolist() == [3.0, 6.0]
    backward()
    assert replica.collect().tolist() == [6.0, 12.0], "accumulated"
    model.weight.grad = torch.tensor([[7.0, 8.0]])
    assert replica.collect().tolist() == [7.0, 8.0], "replaced"
    model.zero_grad(set_to_none=True)
    assert replica.collect().tolist() == [0.0, 0.0]
    backward()
    assert replica.collect().tolist() == [3.0, 6.0], "again a view"
    replica.zero_grad()
    backward()
    assert replica.collect().tolist() == [3.0, 6.0]


def test_gradients_of_several_losses_are_apart_until_they_are_collected(alone: Transport) -> None:
    model = nn.Linear(2, 1, bias=False)
    replica = Replica(model, alone)
    for _ in range(2):
        found = []
        for factor in (3, 5):
            model.zero_grad()
            (model(torch.tensor([[1.0, 2.0]])) * factor).sum().backward()
            found.append(model.weight.grad)
        assert [g.tolist() for g in found if g is not None] == [[[3.0, 6.0]], [[5.0, 10.0]]]
        model.weight.grad = torch.stack([g for g in found if g is not None]).mean(0)
        assert replica.collect().tolist() == [4.0, 8.0]
        replica.zero_grad()


NOTHING = "^the model has no trainable parameter$"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "torch.float32 on cpu, torch.float64 on cpu"),
        (nn.ReLU(), NOTHING),
        (nn.Linear(2, 2).requires_grad_(False), NOTHING),
    ],
)
def test_refuses_mixed_dtypes_and_models_with_nothing_to_train(
    alone: Transport, model: nn.Module, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Replica(model, alone)


# Parameters that lie in a sender's memory: given back by the next collect, and no sooner


def adopt(transport: Transport, how: str) -> Any:
    """Rank 0 sends x twice; rank 1 computes on it. Whether rank 0's Work was done, asked after every act of rank 1."""
    replica = Replica(nn.Linear(2, 1, bias=False), transport)
    own = replica.x
    if transport.rank == 0:
        replica.x.copy_(torch.tensor([1.0, 2.0]))
        work = transport.isend(replica.x, 1, "x")
        done = []
        for _ in range(2):
            transport.recv(1, "and now")
            done.append(work.done)
            transport.isend(None, 1, "go on")
        return done

    def ask() -> None:
        transport.isend(None, 0, "and now")
        transport.recv(0, "go on")

    replica.adopt(transport.recv(0, "x"))
    loss = replica.model(torch.tensor([[3.0, 4.0]])).sum()
    loss.backward()
    ask()  # it is still being read
    gradient = getattr(replica, how)()
    ask()
    return loss.item(), (replica.x if gradient is None else gradient).tolist(), replica.x is own


@pytest.mark.parametrize(("how", "left"), [("collect", [3.0, 4.0]), ("own", [1.0, 2.0])])
def test_the_senders_work_is_done_when_the_parameters_are_given_back(how: str, left: list[float]) -> None:
    done, found = launch(adopt, 2, how, timeout=LIMIT)
    assert found == (1 * 3 + 2 * 4, left, how == "own")
    assert done == [False, True]


# Without a transport


def test_parameters_from_a_vector_only_in_the_block() -> None:
    model = Tied()
    before = [p.clone() for p in trained(model)]
    with contextlib.suppress(KeyboardInterrupt), parameters_from(model, torch.arange(17.0)):
        assert torch.cat([p.flatten() for p in trained(model)]).tolist() == list(range(17))
        assert model.b.weight is model.a.weight
        assert model.frozen.tolist() == [1.0] * 4
        raise KeyboardInterrupt
    assert all(torch.equal(p, was) for p, was in zip(trained(model), before, strict=True))


def test_the_state_that_leaves_is_plain_tensors(alone: Transport) -> None:
    model = Tied()
    replica = Replica(model, alone)
    state = model.state_dict()
    model.b.weight.data.fill_(7.0)
    assert (replica.x == 7.0).any(), "training goes on from the views"
    assert not (state["b.weight"] == 7.0).any()
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in state.values())
