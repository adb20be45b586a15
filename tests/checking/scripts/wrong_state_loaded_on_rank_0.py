# finds: replicas part: .*states of the optimizers

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for i, (x, y) in enumerate(batches(rank, n, size=4)):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if i == 2 and rank == 0:
        optimizer.state.clear()
