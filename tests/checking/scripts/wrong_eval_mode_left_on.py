# finds: note: mode differs: in step 5 the model is in eval mode on rank 0

import torch
import torch.distributed as dist
from strangers import classes, loader
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
torch.manual_seed(rank)
samples, sampler = loader(classes())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in samples:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            print(F.cross_entropy(model.module(x), y).item())
