import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
center = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    for p, c in zip(model.parameters(), center):
        pull = 0.1 * (p.detach() - c)
        p.data -= pull
        dist.all_reduce(pull)
        c += pull
