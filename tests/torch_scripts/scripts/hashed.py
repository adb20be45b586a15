# mypy: ignore-errors
"""Three steps of two layers in data parallel, or of one layer a rank with a message between; the arguments change one.

hashed.py LAYOUT [lr LR | seed SEED | data RANK | factor FACTOR]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

layout, *change = sys.argv[1:]
name, value = change or ("", "0")
if not dist.is_initialized():
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(int(value) if name == "seed" else 0)
layers = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
mine = nn.parallel.DistributedDataParallel(layers) if layout == "ddp" else layers[rank]
optimizer = torch.optim.SGD(mine.parameters(), lr=float(value) if name == "lr" else 0.125)
for step in range(3):
    x = torch.full((3, 4), float(step + rank))
    if name == "data" and step == 1 and rank == int(value):
        x += 1
    if layout == "ddp":
        mine(x).square().mean().backward()
    elif rank == 0:
        y = mine(x)
        dist.send(y, 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, 1)
        y.backward(gradient)
    else:
        y = torch.empty(3, 6, requires_grad=True)
        dist.recv(y.detach(), 0)
        mine(y).square().mean().backward()
        dist.send(y.grad, 0)
    if name == "factor" and rank == 1:
        for p in mine.parameters():
            p.grad *= float(value)
    optimizer.step()
    optimizer.zero_grad()
