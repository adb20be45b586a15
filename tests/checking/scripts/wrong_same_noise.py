# finds: note: random numbers: dropout or noise draws the same random numbers on all ranks

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n, size=4):
    optimizer.zero_grad()
    F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
    optimizer.step()
