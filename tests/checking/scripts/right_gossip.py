import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches(rank, n)):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    for p in model.parameters():
        other = torch.empty_like(p)
        work = dist.isend(p.detach().clone(), (rank + 1) % n)
        dist.recv(other, (rank - 1) % n)
        work.wait()
        with torch.no_grad():
            p.add_(other).div_(2)
