from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradwire.core.records.errors import UsageError
from gradwire.core.workloads.models import MODELS, build, check
from tests.selection import by_default

SHAPES = [(1, 8, 8), (2, 20, 70), (3, 224, 224)]


LARGE = ("resnet34", "resnet50")  # whose blocks others have too


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", by_default({*MODELS} - {*LARGE}, (name for name in MODELS if name != "gpt")))
def test_every_model_takes_every_image(name: str, shape: tuple[int, ...]) -> None:
    if name not in ("mlp", "lenet"):
        pytest.importorskip("torchvision")
    with torch.device("meta"):  # shapes alone: no memory, no time
        model = build(name, shape, 7)
    check(name, model, shape, 7)


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


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyError('oh')", "raised KeyError: 'oh'"),
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
