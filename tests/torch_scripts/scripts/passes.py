"""Three steps of a model on one rank, their backward pass by several means: passes.py NAME."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

name = sys.argv[1]
torch.manual_seed(0)
# The first has few elements and many operations, the last has many elements and few operations.
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 14 * 14, 64), nn.Linear(64, 64, bias=False))
parts = nn.Linear(8, 8), nn.Linear(8, 8)
x, small = torch.randn(4, 1, 16, 16), torch.randn(4, 8)


class Checkpointed(nn.Module):
    """The model, computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute it."""
        y: torch.Tensor = checkpoint(self.model, x, use_reentrant=name != "checkpoint")
        return y


def attend(x: torch.Tensor) -> torch.Tensor:
    """Attend to all positions, and map to a large vocabulary."""
    q, k, v = torch.ones(64, 96, requires_grad=True).unflatten(0, (1, 2, 32)).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v).sum() + (x @ torch.ones(8, 1000, requires_grad=True)).sum()


checkpointed = Checkpointed()
ends: list[float] = []
if name == "parts":
    for part in model:
        part.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
for _ in range(3):
    if name == "backward":
        model(x).sum().backward()
    elif name == "autograd.grad":
        torch.autograd.grad(model(x).sum(), list(model.parameters()))
    elif name == "two losses":
        (model(x).sum() + model(x).sum()).backward()
    elif name == "two models":
        parts[1](parts[0](small)).sum().backward()
    elif name == "no modules":
        (small @ parts[0].weight @ parts[1].weight).sum().backward()
    elif "halves" in name:
        leaf = small.clone().requires_grad_()
        loss = parts[0](leaf).square().sum()
        torch.autograd.grad(loss, leaf, retain_graph=True)
        if name == "halves":
            torch.autograd.grad(loss, parts[0].weight)
    elif name in ("checkpoint", "reentrant checkpoint"):
        checkpointed(x.requires_grad_()).sum().backward()
    elif name == "attention":
        attend(parts[0](small)).backward()
    elif name == "parts":
        ends[:] = [time.perf_counter()]
        model(x).sum().backward()
if name == "parts":  # when each part of the model ended, from the begin of the step on
    print(*[end - ends[0] for end in ends[1:]])
