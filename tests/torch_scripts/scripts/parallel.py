"""Two steps of a layer in tensor or expert parallel; prints the seconds of the second.

parallel.py mlp|attention|sequence|experts
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

B, T, H, HEADS = 2, 12, 24, 12  # samples, tokens, width, heads


class Attention(nn.Module):
    """Of Megatron: a rank has some of the heads."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.heads = HEADS // n
        self.q, self.k, self.v, self.out = (nn.Linear(H, H, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, with the heads of this rank."""
        q, k, v = (layer(x).view(B, T, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """Of Megatron: a rank has some columns of the first matrix, and these rows of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(H, 4 * H, bias=False), nn.Linear(4 * H, H, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return self.second(F.gelu(self.first(x)))


class Experts(nn.Module):
    """A rank has one expert, and sends it as many of its tokens as each other."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send the tokens, compute what has come, send it back."""
        counts, group = [B * T // n] * n, mesh.get_group()
        come = all_to_all_single_autograd(x.flatten(0, 1), counts, counts, group)
        back = all_to_all_single_autograd(self.expert(come), counts, counts, group)
        return back.view(x.shape)


name = sys.argv[1]
dist.init_process_group("gloo")
n = dist.get_world_size()
mesh = init_device_mesh("cpu", (n,))
torch.manual_seed(0)
layer: nn.Module = Attention(n) if name == "attention" else Experts() if name == "experts" else MLP()
shard = Shard(1) if name == "sequence" else None
columns, rows = ColwiseParallel(input_layouts=shard), RowwiseParallel(output_layouts=shard)
plans = {"attention": {"q": columns, "k": columns, "v": columns, "out": rows}, "experts": {}}
layer = parallelize_module(layer, mesh, plans.get(name, {"first": columns, "second": rows}))
for _ in range(2):
    x = torch.randn(B, T // n if name == "sequence" else T, H, requires_grad=True)
    begun = time.perf_counter()
    layer(x).sum().backward()
    assert x.grad is not None
    x.grad.sum().item()
print(time.perf_counter() - begun)
