from collections.abc import Callable

import pytest
import torch
from torch import nn

from records.errors import UsageError
from workloads import datasets
from workloads.models import MODELS, build, check, seeded
from workloads.options import DataOptions

SHAPES = [(1, 8, 8), (2, 20, 70), (3, 224, 224)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_every_image(name: str, shape: tuple[int, ...]) -> None:
    if name not in ("mlp", "lenet"):
        pytest.importorskip("torchvision")
    with torch.device("meta"):  # shapes alone: no memory, no time
        model = build(name, shape, 7)
    check(name, model, shape, 7)


def test_the_first_weights_are_those_of_the_seed_and_leave_the_random_state_alone() -> None:
    data, before = datasets.load(DataOptions(dataset="tests.workload:moons")), torch.get_rng_state()
    first, same, other = (
        seeded("tests.workload:linear", data, seed, torch.float64).state_dict()["weight"] for seed in (3, 3, 4)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), before)


def test_what_becomes_of_small_images() -> None:
    pytest.importorskip("torchvision")
    with torch.device("meta"):
        for side, stride, pool in ((64, (1, 1), nn.Identity), (65, (2, 2), nn.MaxPool2d)):
            resnet = build("resnet18", (1, side, side), 10)
            assert isinstance(resnet.conv1, nn.Conv2d)
            assert (resnet.conv1.stride, resnet.conv1.in_channels) == (stride, 1)
            assert isinstance(resnet.maxpool, pool), "a resnet keeps the resolution of small images only"
        for side, enlarged in ((63, True), (64, False)):
            modules = build("alexnet", (3, side, side), 10).modules()
            assert any(isinstance(module, nn.Upsample) for module in modules) is enlarged


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("lenet", (5,), "--model lenet: .*take --model mlp"),
        ("lenet", (1, 7, 9), "8 x 8 or more, not 7 x 9"),
        ("resnet81", (3, 32, 32), r"--model resnet81: unknown; did you mean resnet18\?"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(name: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build(name, shape, 3)


def test_a_users_model_is_given_the_sizes(user_module: Callable[[str], str]) -> None:
    name = user_module("def make(shape, n): return nn.Linear(shape[0], n).double()")
    model = build(name, (5,), 3)
    check(name, model, (5,), 3)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (5, 3)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyError('oh')", "raised KeyError: 'oh'"),
        ("return 3", "returned a int"),
        ("return nn.Linear(5, n).requires_grad_(False)", "no trainable parameter"),
    ],
)
def test_a_users_faults_are_told(user_module: Callable[[str], str], body: str, told: str) -> None:
    name = user_module(f"def make(shape, n): {body}")
    with pytest.raises(UsageError, match=f"^--model {name}: .*{told}"):
        build(name, (5,), 3)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.Linear(4, 3), "raised RuntimeError"),
        (nn.Linear(5, 4), r"gave \(2, 4\).* make it give \(2, 3\)"),
        (nn.LSTM(5, 3), "gave a tuple"),
    ],
)
def test_check_refuses_other_outputs(model: nn.Module, told: str) -> None:
    with pytest.raises(UsageError, match=f"--model mine: {told}"):
        check("mine", model, (5,), 3)


def test_check_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout())
    model[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    check("mine", model, (5,), 3)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
