import copy

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
average = copy.deepcopy(model.module) if rank == 0 else None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if rank == 0:
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.module.parameters()):
                a.lerp_(p, 0.1)
            average(x)
