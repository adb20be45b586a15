import os
import tempfile

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.pt")
model = DistributedDataParallel(net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    for x, y in batches(rank, n):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


train()
if rank == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
dist.barrier()
state = torch.load(path, map_location="cpu")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
train()
dist.barrier()
if rank == 0:
    os.remove(path)
