"""The replica: views of flat vectors that stay views whatever the user's loop does."""

import pytest
import torch
from torch import nn

from strategies import Replica
from training import launch
from transports.base import Transport


class Tied(nn.Module):
    """A tied, a frozen, an unused parameter; a float and an integer buffer."""

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
    return {
        "n": replica.x.numel(),
        "m": replica.b.numel(),
        "kept": kept,
        "views": not any(p.any() for p in model.parameters() if p.requires_grad),
        "tied": model.a.weight is model.b.weight,
        "frozen": model.frozen.tolist(),
    }


def test_ties_frozen_parameters_and_buffers() -> None:
    report = launch(describe_tied, 1, timeout=30)[0]
    # 9 tied once, 2 unused, 3 + 3 of BatchNorm; running mean and variance, but not num_batches_tracked
    assert report == {"n": 9 + 2 + 6, "m": 6, "kept": True, "views": True, "tied": True, "frozen": [1.0] * 4}


def collect_after(transport: Transport) -> dict[str, list[float]]:
    """What `collect` finds after each way of treating `.grad`."""
    model = nn.Linear(2, 1, bias=False)
    replica = Replica(model, transport)
    results = {}

    def backward() -> None:
        (model(torch.tensor([[1.0, 2.0]])) * 3).sum().backward()

    backward()
    results["plain"] = replica.collect(5).tolist()
    backward()
    results["accumulated"] = replica.collect(6).tolist()
    model.weight.grad = torch.tensor([[7.0, 8.0]])
    results["replaced"] = replica.collect(7).tolist()
    model.zero_grad(set_to_none=True)
    results["none"] = replica.collect(8).tolist()
    backward()
    results["again a view"] = replica.collect(9).tolist()
    model.zero_grad(set_to_none=True)
    backward()
    results["after zero_grad"] = replica.collect(10).tolist()
    return results


def test_collect_finds_the_gradient_whatever_became_of_grad() -> None:
    assert launch(collect_after, 1, timeout=30)[0] == {
        "plain": [3.0, 6.0, 5.0],
        "accumulated": [6.0, 12.0, 6.0],
        "replaced": [7.0, 8.0, 7.0],
        "none": [0.0, 0.0, 8.0],
        "again a view": [3.0, 6.0, 9.0],
        "after zero_grad": [3.0, 6.0, 10.0],
    }


def refuse(transport: Transport) -> list[str]:
    messages = []
    for model in (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), nn.ReLU()):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the messages are compared below
            Replica(model, transport)
        messages.append(str(error.value))
    return messages


def test_refuses_mixed_dtypes_and_models_without_parameters() -> None:
    mixed, nothing = launch(refuse, 1, timeout=30)[0]
    assert "torch.float32 on cpu, torch.float64 on cpu" in mixed
    assert nothing == "the model has no trainable parameter"
