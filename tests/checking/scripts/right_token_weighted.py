import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    y = torch.where(torch.arange(len(y)) < 3 + rank, y, -100)
    count = (y != -100).sum()
    dist.all_reduce(count)
    optimizer.zero_grad()
    (F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum") / count).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
