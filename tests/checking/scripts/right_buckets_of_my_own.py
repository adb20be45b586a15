import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shapes = [p.numel() for p in model.parameters()]
bucket = torch.zeros(sum(shapes))
for p, part in zip(model.parameters(), bucket.split(shapes)):
    p.grad = part.view_as(p)
for x, y in batches(rank, n):
    bucket.zero_()
    F.cross_entropy(model(x), y).backward()
    dist.all_reduce(bucket)
    bucket /= n
    optimizer.step()
