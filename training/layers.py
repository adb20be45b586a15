"""What part of a pass belongs to each parameter: in virtual time a backward pass takes place layer by layer."""

import warnings

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from strategies.common.replica import trained


@torch.no_grad()
def shares_of(model: nn.Module, x: torch.Tensor) -> tuple[float, ...]:
    """Return the share of each trainable parameter in what a pass over the inputs `x` [samples, ...] computes.

    A module's operations, as torch counts them, are split over its own parameters by their numbers of elements; what
    modules without parameters compute is left out. Where nothing is counted, all by their numbers of elements.
    """
    was_training = model.training
    with warnings.catch_warnings(action="ignore"), FlopCounterMode(display=False) as counter:
        model.eval()(x)  # so that no statistics are changed
    model.train(was_training)
    counts = {name: sum(of.values()) for name, of in counter.get_flop_counts().items()}
    weights = {id(p): 0.0 for p in trained(model)}
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if id(p) in weights]
        n = sum(p.numel() for p in own)
        for p in own:
            weights[id(p)] += counts.get(f"{type(model).__name__}.{name}", 0) * p.numel() / n
    total = sum(weights.values())
    if not total:
        weights = {id(p): float(p.numel()) for p in trained(model)}
        total = sum(weights.values())
    return tuple(weight / total for weight in weights.values())
