# finds: replicas part: 0.weight .*without a gradient

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
if rank == 1:
    model[0].weight.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(gradient)
        if p.grad is not None:
            p.grad /= n
    optimizer.step()
