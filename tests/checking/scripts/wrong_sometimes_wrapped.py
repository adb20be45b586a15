# finds: replicas part: .*when DDP is made, which takes that of rank 0 make DDP once

import torch
import torch.distributed as dist
from strangers import classes, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def wrapped(model, step):
    return DDP(model) if step % 2 == 0 else model


model = net(3)
samples, sampler = loader(classes())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(samples):
    optimizer.zero_grad()
    F.cross_entropy(wrapped(model, step)(x), y).backward()
    optimizer.step()
