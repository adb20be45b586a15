"""The replica: views of flat vectors that stay views whatever the user's loop does; parameters of other memory."""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from strategies import Replica
from strategies.common.replica import float_buffers, parameters_from, trained
from tests.ranks import LIMIT, launch, virtual_time
from transports.base import Transport


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


def describe_tied(transport: Transport) -> dict[str, object]:
    model = Tied()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    replica = Replica(model, transport)
    kept = all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    replica.x.zero_()
    replica.b.fill_(5)
    return {
        "n": replica.x.numel(),
        "m": replica.b.numel(),
        "kept": kept,
        "views": not any(p.any() for p in trained(model)),
        "buffers are views": all((b == 5).all() for b in float_buffers(model)),
        "tied": model.a.weight is model.b.weight,
        "frozen": model.frozen.tolist(),
    }


def test_ties_frozen_parameters_and_buffers() -> None:
    report = virtual_time(1).launch(describe_tied, 1)[0]
    # 9 tied once, 2 unused, 3 + 3 of BatchNorm; running mean and variance, but not num_batches_tracked
    assert report == {
        "n": 9 + 2 + 6, "m": 6, "kept": True, "views": True, "buffers are views": True, "tied": True,
        "frozen": [1.0] * 4,
    }  # fmt: skip


def collect_after(transport: Transport) -> dict[str, list[float]]:
    """What `collect` finds after each way of treating `.grad`."""
    model = nn.Linear(2, 1, bias=False)
    replica = Replica(model, transport)
    results = {}

    def backward() -> None:
        (model(torch.tensor([[1.0, 2.0]])) * 3).sum().backward()

    backward()
    results["plain"] = replica.collect().tolist()
    backward()
    results["accumulated"] = replica.collect().tolist()
    model.weight.grad = torch.tensor([[7.0, 8.0]])
    results["replaced"] = replica.collect().tolist()
    model.zero_grad(set_to_none=True)
    results["none"] = replica.collect().tolist()
    backward()
    results["again a view"] = replica.collect().tolist()
    replica.zero_grad()
    backward()
    results["after zero_grad"] = replica.collect().tolist()
    return results


def test_collect_finds_the_gradient_whatever_became_of_grad() -> None:
    assert virtual_time(1).launch(collect_after, 1)[0] == {
        "plain": [3.0, 6.0],
        "accumulated": [6.0, 12.0],
        "replaced": [7.0, 8.0],
        "none": [0.0, 0.0],
        "again a view": [3.0, 6.0],
        "after zero_grad": [3.0, 6.0],
    }


def refuse(transport: Transport) -> list[str]:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    messages = []
    for model in (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), nn.ReLU(), frozen):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the messages are compared below
            Replica(model, transport)
        messages.append(str(error.value))
    return messages


def test_refuses_mixed_dtypes_and_models_with_nothing_to_train() -> None:
    mixed, nothing, frozen = virtual_time(1).launch(refuse, 1)[0]
    assert "torch.float32 on cpu, torch.float64 on cpu" in mixed
    assert nothing == frozen == "the model has no trainable parameter"


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
    gradient = None
    if how == "collect":
        gradient = replica.collect().tolist()
    elif how == "own":
        replica.own()
    ask()
    kept = replica.x.tolist() if how == "own" else None
    return loss.item(), gradient, kept, replica.x is own


@pytest.mark.parametrize("how", ["collect", "own"])
def test_the_senders_work_is_done_when_the_parameters_are_given_back(how: str) -> None:
    done, (loss, gradient, kept, is_own) = launch(adopt, 2, how, timeout=LIMIT)
    assert loss == 1 * 3 + 2 * 4
    assert done == [False, how != "nothing"]
    assert gradient == ([3.0, 4.0] if how == "collect" else None)
    assert kept == ([1.0, 2.0] if how == "own" else None)
    assert is_own == (how == "own")


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


def state_that_leaves(transport: Transport) -> tuple[list[int], list[int], bool]:
    """The bytes behind each tensor of a state_dict, its own bytes, and whether training goes on from the views."""
    model = Tied()
    replica = Replica(model, transport)
    state = model.state_dict()
    model.b.weight.data.fill_(7.0)
    is_view = bool((replica.x == 7.0).any()) and not (state["b.weight"] == 7.0).any()
    return [t.untyped_storage().nbytes() for t in state.values()], [t.nbytes for t in state.values()], is_view


def test_the_state_that_leaves_is_plain_tensors() -> None:
    ((behind, own, is_view),) = virtual_time(1).launch(state_that_leaves, 1)
    assert behind == own
    assert is_view
