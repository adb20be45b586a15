"""Which part of a pass belongs to each parameter."""

from collections.abc import Callable

from torch import nn

from gradwire.core.strategy.tensors import trained
from gradwire.core.training.computing import count_flops


def shares_of(model: nn.Module, compute: Callable[[], object]) -> tuple[float, ...]:
    """Return the share of each trainable parameter in the operations of the forward pass by `compute`.

    A module's operations, as torch counts them, are split over its own parameters by their numbers of elements; what
    modules without parameters compute is left out. Where nothing is counted, all by their numbers of elements.
    """
    counts = {name: sum(of.values()) for name, of in count_flops(model, compute).get_flop_counts().items()}
    weights = {id(p): 0.0 for p in trained(model)}
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if id(p) in weights]
        n = sum(p.numel() for p in own)
        for p in own:
            weights[id(p)] += counts.get(f"{type(model).__name__}.{name}", 0) * p.numel() / max(n, 1)
    if not any(weights.values()):
        weights = {id(p): float(p.numel()) for p in trained(model)}
    total = sum(weights.values())
    return tuple(weight / total for weight in weights.values())
