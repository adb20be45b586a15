# finds: replicas part: .*only rank 0 changed

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = [p.detach().clone() for p in model.parameters()]
for x, y in batches(rank, n, size=4):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if rank == 0:
        for a, p in zip(average, model.parameters()):
            a.lerp_(p.detach(), 0.1)
            p.data.copy_(a)
