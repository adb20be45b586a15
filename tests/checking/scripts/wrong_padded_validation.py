# finds: note: samples counted twice

import torch
import torch.distributed as dist
from common import batches, begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
few = Subset(dataset(), range(10))
right = torch.zeros(1)
with torch.no_grad():
    for x, y in DataLoader(few, 4, sampler=DistributedSampler(few, shuffle=False)):
        right += (model.module(x).argmax(1) == y).sum()
dist.all_reduce(right)
