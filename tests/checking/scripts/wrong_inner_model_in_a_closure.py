# finds: replicas part: .*the model inside of DDP was called

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x, y in batches(rank, n):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.module(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
