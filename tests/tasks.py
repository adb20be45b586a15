"""Data, models and tasks of a user's own, for `--dataset tests.tasks:lines --task language_model` and others."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
TOKENS, LENGTH = 7, 6


def lines() -> Arrays:
    """Lines of tokens, each the next of the one before, with 1 to 6 targets: ranks have unequal numbers of them."""
    random = torch.Generator().manual_seed(0)
    x = (torch.randint(TOKENS, (62, 1), generator=random) + torch.arange(LENGTH)) % TOKENS
    n = torch.randint(1, LENGTH + 1, (62, 1), generator=random)
    y = torch.where(torch.arange(LENGTH) < n, (x + 1) % TOKENS, -100)
    return x[:42], y[:42], x[42:], y[42:]


def language(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(n_classes, 4), nn.Linear(4, n_classes))


def masked(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    output = model(x)
    counted = y != -100
    right = (output.argmax(-1) == y)[counted].double().mean()
    return F.cross_entropy(output[counted], y[counted]), counted.sum(), {"right": right}


def heights() -> Arrays:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x @ torch.tensor([[1.0, 0.0], [-2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    return x[:40], y[:40], x[40:], y[40:]


def regression(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


class _OwnLoss(nn.Linear):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return F.mse_loss(super().forward(x), y)


def own_loss(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return _OwnLoss(input_shape[0], n_classes)


def own(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    return model(x, y), len(x)


def contrastive(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Make each sample most like its shifted copy, by ignoring in which direction that is: it needs no y."""
    ahead, other = (F.normalize(model(x + 0.5 * shift), dim=1) for shift in (1, -1))
    return F.cross_entropy(ahead @ other.T / 0.1, torch.arange(len(x)))


def of_two(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Regression that a single sample is too little for."""
    if len(x) == 1:
        raise IndexError("one sample")
    return regression(model, x, y)


# What a function must not return, of the loss and x, and what is said of it: each is a task of its name

WRONG: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "no_gradient": (lambda loss, x: loss.detach(), "gave a loss without gradient"),
    "not_reduced": (lambda loss, x: loss * x, "gave a Tensor (2, 3) of torch.float32 as loss, which must be a tensor"),
    "a_number": (lambda loss, x: loss.item(), "gave a float as loss"),
    "none": (lambda loss, x: None, "gave a NoneType as loss"),
    "four": (lambda loss, x: (loss, 1, {}, 4), "returned 4 things; return loss, (loss, n) or (loss, n, {'score': num"),
    "half": (lambda loss, x: (loss, 0.5), "gave a float as n, which must be an integer"),
    "nothing": (lambda loss, x: (loss, 0), "gave n = 0"),
    "a_list": (lambda loss, x: (loss, 1, [0.5]), "gave a list as scores, which must be a dictionary"),
    "bad_name": (lambda loss, x: (loss, 1, {"R squared": 0.5}), "gave a score the name 'R squared'"),
    "taken": (lambda loss, x: (loss, 1, {"step": 0.5}), "gave a score the name 'step'; take one as of a variable, oth"),
    "many": (lambda loss, x: (loss, 1, {"error": x}), "gave a Tensor (2, 3) of torch.float32 as score error, which"),
    "not_a_number": (lambda loss, x: loss * math.nan, "its loss of the first samples is nan"),
    "raises": (lambda loss, x: 1 / 0, "with --model tests.workload:linear, on x a Tensor (2, 3) of torch.float32 and"),
}


def __getattr__(name: str) -> Callable[[nn.Module, Tensor, Tensor], Any]:
    if name not in WRONG:
        raise AttributeError(name)
    return lambda model, x, y: WRONG[name][0](regression(model, x, y), x)
