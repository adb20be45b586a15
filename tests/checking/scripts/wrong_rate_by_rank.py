# finds: replicas part: .*lr does not

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + rank))
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n
    optimizer.step()
