# finds: gradient is not the mean: .*3 times the mean: the loss or its gradients are multiplied by 3

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss * n).backward()
        return loss

    optimizer.step(closure)
