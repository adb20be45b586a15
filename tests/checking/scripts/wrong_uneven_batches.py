# finds: gradient is not the mean: .*unlike numbers

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    x, y = x[: 3 + 2 * rank], y[: 3 + 2 * rank]
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
