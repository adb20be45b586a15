import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    y = torch.where(torch.arange(len(y)) < 3 + rank, y, -100)
    mine = (y != -100).sum()
    count = mine.clone()
    dist.all_reduce(count)
    optimizer.zero_grad()
    (F.cross_entropy(model(x), y, ignore_index=-100) * mine * n / count).backward()
    optimizer.step()
