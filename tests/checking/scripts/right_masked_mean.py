import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    mask = (torch.arange(len(y)) < 2 + rank).float()
    count = mask.sum()
    dist.all_reduce(count)
    optimizer.zero_grad()
    each = F.cross_entropy(model(x), y, reduction="none")
    ((each * mask).sum() / count).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
