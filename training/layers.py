"""What a pass computes: on how many threads, and, in virtual time, which part of it belongs to each parameter."""

import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from strategies.common.replica import trained

FLOP_OF_TWO_THREADS = 1e8
"""The operations of a forward pass below which one thread computes it, in some milliseconds.

A second thread would save less than half of them on idle cores, and cost ten times as much on a busy machine.
"""


def choose_threads(model: nn.Module, compute: Callable[[], object], times: float) -> None:
    """Make this process compute on one thread where a pass of so many times `compute` is too small for several."""
    if torch.get_num_threads() > 1 and _counted(model, compute).get_total_flops() * times < FLOP_OF_TWO_THREADS:
        torch.set_num_threads(1)


@torch.no_grad()
def _counted(model: nn.Module, compute: Callable[[], object]) -> FlopCounterMode:
    was_training = model.training
    with warnings.catch_warnings(action="ignore"), FlopCounterMode(display=False) as counter:
        model.eval()  # so that no statistics are changed
        compute()
    model.train(was_training)
    return counter


def shares_of(model: nn.Module, compute: Callable[[], object]) -> tuple[float, ...]:
    """Return the share of each trainable parameter in what the forward pass by `compute` computes.

    A module's operations, as torch counts them, are split over its own parameters by their numbers of elements; what
    modules without parameters compute is left out. Where nothing is counted, all by their numbers of elements.
    """
    counts = {name: sum(of.values()) for name, of in _counted(model, compute).get_flop_counts().items()}
    weights = {id(p): 0.0 for p in trained(model)}
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if id(p) in weights]
        n = sum(p.numel() for p in own)
        for p in own:
            weights[id(p)] += counts.get(f"{type(model).__name__}.{name}", 0) * p.numel() / n
    if not any(weights.values()):
        weights = {id(p): float(p.numel()) for p in trained(model)}
    total = sum(weights.values())
    return tuple(weight / total for weight in weights.values())
