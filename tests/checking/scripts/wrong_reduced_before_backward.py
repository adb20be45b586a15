# finds: replicas part: .*does not change

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n, size=4):
    loss = F.cross_entropy(model(x), y)
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= n
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
