import torch
from common import batches, begin, net
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
