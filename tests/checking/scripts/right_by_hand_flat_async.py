import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net(seed=rank)
for p in model.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    half = len(flat) // 2
    works = [dist.all_reduce(part, async_op=True) for part in (flat[:half], flat[half:])]
    works[0].wait()
    flat[:half] /= n
    works[1].wait()
    flat[half:] /= n
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    optimizer.step()
