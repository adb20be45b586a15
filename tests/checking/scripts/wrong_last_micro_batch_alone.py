# finds: replicas part: .*no_sync

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = list(batches(rank, n, size=4))
for i in range(0, 4, 2):
    optimizer.zero_grad()
    for j in (i, i + 1):
        with model.no_sync():
            x, y = parts[j]
            (F.cross_entropy(model(x), y) / 2).backward()
    optimizer.step()
