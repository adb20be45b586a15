# mypy: ignore-errors
"""After torch's examples of tensor parallel: an MLP, also in sequence parallel, and with FSDP2 on a 2-D mesh."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(10, 32)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(32, 5)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


world = int(os.environ["WORLD_SIZE"])
rank = int(os.environ["RANK"])
for kind in ("tp", "sp", "2d"):
    torch.manual_seed(0)
    model = ToyModel()
    if kind == "2d":
        mesh2 = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        mesh = mesh2["tp"]
    else:
        mesh = init_device_mesh("cpu", (world,))
    plan = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
    if kind == "sp":
        plan = {
            "in_proj": ColwiseParallel(input_layouts=Shard(0)),
            "out_proj": RowwiseParallel(output_layouts=Shard(0)),
        }
    model = parallelize_module(model, mesh, plan)
    if kind == "2d":
        model = fully_shard(model, mesh=mesh2["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
    for i in range(3):
        torch.manual_seed(i + (rank if kind == "sp" else rank // 2 if kind == "2d" else 0))
        inp = torch.rand(4, 10)
        output = model(inp)
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(kind, rank, output.sum().item())
dist.destroy_process_group()
